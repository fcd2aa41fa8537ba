# Defines quipu::openblas where OpenBLAS is installed. The serial flavour is taken by path, because the distribution's
# alternative prefers the threaded one; both have the same name at run time, so its folder goes into the rpath.
# Read by our own build and by find_package(quipu).
if(NOT TARGET quipu::openblas)
  find_library(QUIPU_OPENBLAS_LIBRARY openblas PATH_SUFFIXES openblas-serial)
  mark_as_advanced(QUIPU_OPENBLAS_LIBRARY)
  if(QUIPU_OPENBLAS_LIBRARY)
    cmake_path(GET QUIPU_OPENBLAS_LIBRARY PARENT_PATH quipu_openblas_folder)
    add_library(quipu::openblas UNKNOWN IMPORTED GLOBAL)
    set_target_properties(quipu::openblas PROPERTIES
      IMPORTED_LOCATION ${QUIPU_OPENBLAS_LIBRARY}
      INTERFACE_LINK_OPTIONS "LINKER:-rpath,${quipu_openblas_folder}")
  endif()
endif()
