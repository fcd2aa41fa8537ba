# A back-end source such as cpu/foo.cpp that provides kernels defines `void quipu::detail::register_cpu_foo()`. This writes
# the one function NAME that calls them all, so that a static library keeps them and nobody has to list them.
function(quipu_write_register_kernels name output)
  set(declarations "")
  set(calls "")
  foreach(source IN LISTS ARGN)
    set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${source})
    file(STRINGS ${source} lines REGEX "^void register_[a-z0-9_]+\\(\\)")
    foreach(line IN LISTS lines)
      string(REGEX MATCH "register_[a-z0-9_]+" function "${line}")
      string(APPEND declarations "void ${function}();\n")
      string(APPEND calls "  ${function}();\n")
    endforeach()
  endforeach()
  file(CONFIGURE OUTPUT ${output} CONTENT
"// Written by cmake/register.cmake.
namespace quipu::detail {
${declarations}
void ${name}();
void ${name}() {
${calls}}
}  // namespace quipu::detail
" @ONLY)
endfunction()
