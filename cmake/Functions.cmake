# -Wrestrict: GCC 12 sees overlapping copies in `"literal" + std::string` (GCC bug 105651).
set(SPARSE_MLA_WARNINGS $<$<COMPILE_LANGUAGE:CXX>:-Wall;-Wextra>
    $<$<AND:$<COMPILE_LANGUAGE:CXX>,$<CXX_COMPILER_ID:GNU>>:-Wshadow=local;-Wno-restrict>)

function(sparse_mla_sanitize target)
  if(SPARSE_MLA_SANITIZE)
    target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-fsanitize=${SPARSE_MLA_SANITIZE}>
                           $<$<COMPILE_LANGUAGE:CXX>:-fno-sanitize-recover=all>)
    target_link_options(${target} PRIVATE -fsanitize=${SPARSE_MLA_SANITIZE})
  endif()
  if(SPARSE_MLA_FUZZ)
    target_compile_options(${target} PRIVATE -fsanitize=fuzzer-no-link)
  endif()
endfunction()

# sparse_mla_room(NAME SOURCES... [DEPENDS target...]): one folder of src/, compiled into the library.
function(sparse_mla_room name)
  cmake_parse_arguments(ROOM "" "" "DEPENDS" ${ARGN})
  add_library(sparse_mla_${name} OBJECT ${ROOM_UNPARSED_ARGUMENTS})
  target_include_directories(sparse_mla_${name} PUBLIC ${PROJECT_SOURCE_DIR}/include ${PROJECT_SOURCE_DIR}/src)
  target_link_libraries(sparse_mla_${name} PRIVATE ${ROOM_DEPENDS})
  target_compile_options(sparse_mla_${name} PRIVATE ${SPARSE_MLA_WARNINGS})
  sparse_mla_sanitize(sparse_mla_${name})
  set_property(GLOBAL APPEND PROPERTY SPARSE_MLA_ROOMS sparse_mla_${name})
endfunction()

# sparse_mla_test(NAME SOURCES... [DEPENDS target...] [LABELS label...]): a GoogleTest program that sees all of src/.
function(sparse_mla_test name)
  cmake_parse_arguments(TEST "" "" "DEPENDS;LABELS" ${ARGN})
  add_executable(${name} ${TEST_UNPARSED_ARGUMENTS})
  target_include_directories(${name} PRIVATE ${PROJECT_SOURCE_DIR}/src ${PROJECT_SOURCE_DIR}/tests)
  target_link_libraries(${name} PRIVATE sparse_mla GTest::gmock GTest::gtest_main ${TEST_DEPENDS})
  target_compile_options(${name} PRIVATE ${SPARSE_MLA_WARNINGS})
  sparse_mla_sanitize(${name})
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/tests)
  add_test(NAME ${name} COMMAND ${name})
  set_tests_properties(${name} PROPERTIES LABELS "${TEST_LABELS}" SKIP_REGULAR_EXPRESSION "NO GPU: whole program skipped")
endfunction()
