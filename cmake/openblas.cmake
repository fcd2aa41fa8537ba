# OpenBLAS behind Eigen's products. We call it from our own threads, so it must be serial inside: find_openblas.cmake
# takes the serial flavour, here and where the installed library is used.
set(QUIPU_WITH_OPENBLAS FALSE)
if(QUIPU_OPENBLAS)
  include(cmake/find_openblas.cmake)
endif()
if(QUIPU_OPENBLAS AND TARGET quipu::openblas)
  set(QUIPU_WITH_OPENBLAS TRUE)
  message(STATUS "Matrix products: OpenBLAS, ${QUIPU_OPENBLAS_LIBRARY}")
  target_compile_definitions(quipu PRIVATE QUIPU_WITH_OPENBLAS)
  target_link_libraries(quipu PRIVATE quipu::openblas)
else()
  message(STATUS "Matrix products: Eigen's own kernels (OpenBLAS not found or switched off)")
endif()
