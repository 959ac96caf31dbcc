# Installs the build to a prefix of its own, then configures, builds and runs the consumer against that prefix alone.
set(PREFIX ${WORK}/prefix)
file(REMOVE_RECURSE ${PREFIX} ${WORK}/consumer)

function(run)
  execute_process(COMMAND ${ARGN} RESULT_VARIABLE status OUTPUT_VARIABLE output ERROR_VARIABLE output)
  if(NOT status EQUAL 0)
    message(FATAL_ERROR "${ARGN} failed:\n${output}")
  endif()
endfunction()

run(${CMAKE_COMMAND} --install ${BUILD} --prefix ${PREFIX})
run(${CMAKE_COMMAND} -S ${SOURCE} -B ${WORK}/consumer -DCMAKE_PREFIX_PATH=${PREFIX} -DCMAKE_BUILD_TYPE=Release
    -DWANTED_VERSION=${VERSION})
run(${CMAKE_COMMAND} --build ${WORK}/consumer)
run(${WORK}/consumer/consumer_cxx)
run(${WORK}/consumer/consumer_c)
message("both consumers ran")
