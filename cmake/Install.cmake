include(CMakePackageConfigHelpers)

install(TARGETS sparse_mla EXPORT sparse_mla-targets LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}
        ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(DIRECTORY include/sparse_mla DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(EXPORT sparse_mla-targets NAMESPACE sparse_mla:: DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/sparse_mla)
configure_package_config_file(cmake/sparse_mla-config.cmake.in ${PROJECT_BINARY_DIR}/sparse_mla-config.cmake
                              INSTALL_DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/sparse_mla)
write_basic_package_version_file(${PROJECT_BINARY_DIR}/sparse_mla-config-version.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/sparse_mla-config.cmake ${PROJECT_BINARY_DIR}/sparse_mla-config-version.cmake
        DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/sparse_mla)
