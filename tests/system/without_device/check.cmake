# cmake -Dprogram=FILE -Dwhy=REGEX -P check.cmake: runs it with all GPUs hidden, or on an emulated one that is too old,
# and wants one line on stderr, which says why there is none, and a clean end.
execute_process(COMMAND ${CMAKE_COMMAND} -E env CUDA_VISIBLE_DEVICES= QUIPU_EMULATOR_CARD=t4 ${program}
                RESULT_VARIABLE status OUTPUT_VARIABLE output ERROR_VARIABLE errors)
if(NOT status EQUAL 0 OR NOT output MATCHES "^on cpu: learnt; zeros: [^\n]*cuda:0[^\n]*${why}[^\n]*\n$" OR
   NOT errors MATCHES "^quipu: no CUDA device \\(${why}\\); running on the CPU\n$")
  message(FATAL_ERROR "status ${status}\nstdout: ${output}\nstderr: ${errors}")
endif()
message(STATUS "${errors}${output}")
