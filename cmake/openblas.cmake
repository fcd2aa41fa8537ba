# OpenBLAS behind Eigen's products. We call it from our own threads, so it must be serial inside: the serial flavour is
# linked by path (the distribution's alternative prefers the threaded one) and found again at run time by rpath.
if(QUIPU_OPENBLAS)
  find_library(QUIPU_OPENBLAS_LIBRARY openblas PATH_SUFFIXES openblas-serial)
endif()
if(QUIPU_OPENBLAS AND QUIPU_OPENBLAS_LIBRARY)
  message(STATUS "Matrix products: OpenBLAS, ${QUIPU_OPENBLAS_LIBRARY}")
  target_compile_definitions(quipu PRIVATE QUIPU_WITH_OPENBLAS)
  target_link_libraries(quipu PRIVATE ${QUIPU_OPENBLAS_LIBRARY})
else()
  message(STATUS "Matrix products: Eigen's own kernels (OpenBLAS not found or switched off)")
endif()
