# For tests of command-line programs: `program` is its path, `folder` where it runs.

# run_program(STATUS OUTPUT ARGS...): must end with this status; what it says goes to OUTPUT.
function(run_program expected_status output)
  execute_process(COMMAND ${program} ${ARGN} WORKING_DIRECTORY ${folder}
                  RESULT_VARIABLE status OUTPUT_VARIABLE text ERROR_VARIABLE errors)
  if(NOT status EQUAL expected_status)
    message(FATAL_ERROR "${ARGN}: status ${status}, not ${expected_status}\n${text}${errors}")
  endif()
  set(${output} "${text}${errors}" PARENT_SCOPE)
endfunction()

# must_say(REGEX STATUS ARGS...)
function(must_say message status)
  run_program(${status} text ${ARGN})
  if(NOT text MATCHES "${message}")
    message(FATAL_ERROR "${ARGN}: it did not say \"${message}\" but\n${text}")
  endif()
endfunction()
