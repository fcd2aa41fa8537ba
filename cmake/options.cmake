# How our own code is compiled: one interface target that every target of the tree links.
add_library(quipu_options INTERFACE)
target_compile_options(quipu_options INTERFACE -Wall -Wextra -Wpedantic -Wconversion -Wno-unused-parameter)
if(QUIPU_WERROR)
  target_compile_options(quipu_options INTERFACE -Werror)
endif()
# Same bits for same inputs, whatever a loop was compiled into: no value-changing optimisations beyond fused multiply-add.
target_compile_options(quipu_options INTERFACE -fno-math-errno -fno-trapping-math)
if(QUIPU_NATIVE)
  target_compile_options(quipu_options INTERFACE -march=native)
endif()
if(QUIPU_SANITIZE)
  target_compile_options(quipu_options INTERFACE -fsanitize=${QUIPU_SANITIZE} -fno-sanitize-recover=all -fno-omit-frame-pointer)
  target_link_options(quipu_options INTERFACE -fsanitize=${QUIPU_SANITIZE})
  if(QUIPU_SANITIZE MATCHES "thread" AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    target_compile_options(quipu_options INTERFACE -Wno-tsan)  # Eigen's pool uses fences
  endif()
endif()
