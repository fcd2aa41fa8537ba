# Joins the objects of one level of cpu/ into one whose functions cannot be seen from outside, but for the one that
# registers its kernels. cmake -Dlevel= -Dlinker= -Dobjcopy= -Dobjdump= -Doutput= -P join_level.cmake -- OBJECTS...
#
# Local become all functions, and all constants, tables of virtual functions among them. Variables stay what they are, weak:
# those of inline variables (the table of kernels) and of static locals are one in the whole program.
function(run)
  execute_process(COMMAND ${ARGN} RESULT_VARIABLE status OUTPUT_VARIABLE text ERROR_VARIABLE errors)
  if(NOT status EQUAL 0)
    list(JOIN ARGN " " command)
    message(FATAL_ERROR "failed: ${command}\n${errors}")
  endif()
  set(text "${text}" PARENT_SCOPE)
endfunction()

set(objects "")
set(past FALSE)
math(EXPR last "${CMAKE_ARGC} - 1")
foreach(i RANGE ${last})
  if(past)
    list(APPEND objects ${CMAKE_ARGV${i}})
  elseif(CMAKE_ARGV${i} STREQUAL "--")
    set(past TRUE)
  endif()
endforeach()

# Inline functions are in groups, and of groups with one name a linker keeps one, even if the name is local.
run(${linker} -r --force-group-allocation -o ${output}.joined ${objects})

# What runs when the program is loaded would run on every processor.
run(${objdump} -h ${output}.joined)
if(text MATCHES "[ \t](\\.(init_array|preinit_array|ctors)[^ \t]*)")
  message(FATAL_ERROR "cpu/ has something that runs before main (section ${CMAKE_MATCH_1}), at level ${level}: make it "
                      "constinit or a static local, or configure with -DQUIPU_CPU_LEVELS=baseline")
endif()

run(${objdump} -t ${output}.joined)
string(REGEX MATCH "_ZN5quipu6detail[0-9]+register_cpu_level_${level}Ev" entry "${text}")
if(NOT entry)
  message(FATAL_ERROR "no function register_cpu_level_${level} in ${output}.joined")
endif()
set(kept "")
# VALUE FLAGS SECTION<tab>SIZE [.hidden ]NAME, of global, unique and weak symbols in sections that a program writes; types,
# too, because some libraries compare their addresses.
string(REGEX MATCHALL "[0-9a-f]+ [gu!w ][w ][^\n]....[ ](\\.t?(data|bss)[^\t\n]*|[^\t\n]*_ZT[IS][^\t\n]*)\t[0-9a-f]+ [^\n]+" lines "${text}")
foreach(line IN LISTS lines)
  string(REGEX REPLACE "^.*[ ]" "" name "${line}")
  if(NOT line MATCHES "[ ]\\.data\\.rel\\.ro[^\t]*\t" OR name MATCHES "^_ZT[IS]")
    string(APPEND kept "${name}\n")
  endif()
endforeach()
# Without its group, a unique symbol (STB_GNU_UNIQUE, which cannot be made local) would be one definition too many.
set(unique "")
string(REGEX MATCHALL "[0-9a-f]+ u......[ ][^\n]+" lines "${text}")
foreach(line IN LISTS lines)
  string(REGEX REPLACE "^.*[ ]" "" name "${line}")
  string(APPEND unique "${name}\n")
endforeach()
file(WRITE ${output}.kept "${entry}\n${kept}")
file(WRITE ${output}.weak "${kept}${unique}")
run(${objcopy} --keep-global-symbols=${output}.kept --weaken-symbols=${output}.weak ${output}.joined ${output})
file(REMOVE ${output}.joined ${output}.kept ${output}.weak)
