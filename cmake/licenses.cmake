# Licences of third-party parts of the program: all libraries of a static build, only headers of any other. They require that their text
# accompanies the program. It is taken from Debian's packages; elsewhere a distributor must collect it.

include(${CMAKE_CURRENT_LIST_DIR}/owners.cmake)
set(licensed ${CLI11_DIR}/CLI11Config.cmake ${nlohmann_json_DIR}/nlohmann_jsonConfig.cmake)
if(KVCODEC_STATIC)
  list(APPEND licensed ${fmt_DIR}/fmt-config.cmake ${OPENBLAS_LIBRARY} ${openblas_archives} ${hdf5_archives} ${OpenMP_gomp_LIBRARY})
  foreach(library PCRE2 XXHASH UTF8PROC HDF5)
    list(APPEND licensed ${${library}_LINK_LIBRARIES})
  endforeach()
endif()
kvcodec_licenses(${CMAKE_CURRENT_BINARY_DIR}/third-party-licenses.txt ${licensed})
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/third-party-licenses.txt DESTINATION ${CMAKE_INSTALL_DOCDIR} OPTIONAL)
