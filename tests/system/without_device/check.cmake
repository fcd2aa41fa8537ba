# cmake -Dprogram=FILE -P check.cmake: runs it with all GPUs hidden, and wants one line on stderr and a clean end.
execute_process(COMMAND ${CMAKE_COMMAND} -E env CUDA_VISIBLE_DEVICES= ${program}
                RESULT_VARIABLE status OUTPUT_VARIABLE output ERROR_VARIABLE errors)
if(NOT status EQUAL 0 OR NOT output MATCHES "^on cpu: learnt; zeros: [^\n]*cuda:0[^\n]*\n$" OR
   NOT errors MATCHES "^quipu: no CUDA device \\([^\n]+\\); running on the CPU\n$")
  message(FATAL_ERROR "status ${status}\nstdout: ${output}\nstderr: ${errors}")
endif()
message(STATUS "${errors}${output}")
