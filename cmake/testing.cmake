# quipu_add_test(NAME COMMAND...): a ctest entry with the sanitizers' settings. Entries that count test cases of their
# own (one per *_test.cpp) get the label "cases"; every other entry counts as one case.
function(quipu_add_test name)
  add_test(NAME ${name} COMMAND ${ARGN})
  set(environment "")
  if(QUIPU_SANITIZE)
    set(environment "ASAN_OPTIONS=detect_leaks=1:detect_stack_use_after_return=1"
                    "UBSAN_OPTIONS=print_stacktrace=1" "TSAN_OPTIONS=second_deadlock_stack=1:die_after_fork=0")
  endif()
  set_tests_properties(${name} PROPERTIES TIMEOUT 900 ENVIRONMENT "${environment}")
endfunction()
