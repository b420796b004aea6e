# The targets of `cmake --install` and CPack: the program with its pages and completions, the libraries with their headers for
# find_package(kvcodec), and packages of all that.
include(CMakePackageConfigHelpers)

# Libraries and headers, in the layout of the sources: #include "lib/codec/encoded.hpp".
set(exported kvcodec_flags kvcodec_lib)
set_target_properties(kvcodec_lib PROPERTIES EXPORT_NAME lib)
if(KVCODEC_HDF5)
  list(APPEND exported kvcodec_formats)
  set_target_properties(kvcodec_formats PROPERTIES EXPORT_NAME formats)
endif()
if(KVCODEC_HAVE_CUDA)
  list(APPEND exported kvcodec_cuda)
  set_target_properties(kvcodec_cuda PROPERTIES EXPORT_NAME cuda)
  install(DIRECTORY cuda DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/kvcodec COMPONENT development
    FILES_MATCHING PATTERN "*.hpp" PATTERN "*.cuh")
endif()
install(TARGETS ${exported} EXPORT kvcodecTargets ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT development)
install(EXPORT kvcodecTargets NAMESPACE kvcodec:: DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/kvcodec COMPONENT development)
install(DIRECTORY lib formats DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/kvcodec COMPONENT development
  FILES_MATCHING PATTERN "*.hpp")
install(DIRECTORY ${CMAKE_CURRENT_BINARY_DIR}/generated/kvcodec DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/kvcodec COMPONENT development)
configure_package_config_file(cmake/kvcodecConfig.cmake.in ${CMAKE_CURRENT_BINARY_DIR}/kvcodecConfig.cmake
  INSTALL_DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/kvcodec)
write_basic_package_version_file(${CMAKE_CURRENT_BINARY_DIR}/kvcodecConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/kvcodecConfig.cmake ${CMAKE_CURRENT_BINARY_DIR}/kvcodecConfigVersion.cmake
  DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/kvcodec COMPONENT development)

install(FILES LICENSE CHANGELOG.md CITATION.cff README.md DESTINATION ${CMAKE_INSTALL_DOCDIR})
install(FILES formats/FORMAT.md DESTINATION ${CMAKE_INSTALL_DOCDIR})

if(NOT KVCODEC_HDF5)
  return()
endif()

include(cmake/licenses.cmake)

# The program writes its completions itself.
foreach(place bash:bash-completion/completions/kvcodec zsh:zsh/site-functions/_kvcodec fish:fish/vendor_completions.d/kvcodec.fish)
  string(REGEX MATCH "^[a-z]+" shell ${place})
  string(REGEX REPLACE "^[a-z]+:" "" path ${place})
  get_filename_component(folder ${path} DIRECTORY)
  set(script ${CMAKE_CURRENT_BINARY_DIR}/completions/${path})
  get_filename_component(script_folder ${script} DIRECTORY)
  install(CODE "
    file(MAKE_DIRECTORY \"${script_folder}\")
    execute_process(COMMAND \"$<TARGET_FILE:kvcodec>\" help --completion ${shell} OUTPUT_FILE \"${script}\" COMMAND_ERROR_IS_FATAL ANY)"
    COMPONENT program)
  install(FILES ${script} DESTINATION ${CMAKE_INSTALL_DATADIR}/${folder} COMPONENT program)
endforeach()

# The quickstart's chain also runs from the installed files.
install(DIRECTORY data/demo-model data/text DESTINATION ${CMAKE_INSTALL_DATADIR}/kvcodec)
install(PROGRAMS data/quickstart-chain.sh DESTINATION ${CMAKE_INSTALL_DATADIR}/kvcodec)

# cmake --build BUILD --target wheel: a package for pip in BUILD/dist, where CPack's packages go too. USES_TERMINAL: one
# installation at a time, like CPack's.
set(packed kvcodec)
if(TARGET kvcodec_shared)
  list(APPEND packed kvcodec_shared)
endif()
add_custom_target(wheel DEPENDS ${packed} VERBATIM USES_TERMINAL COMMENT "Packing a wheel"
  COMMAND ${CMAKE_COMMAND} -D SOURCE=${CMAKE_CURRENT_SOURCE_DIR} -D BUILD=${CMAKE_CURRENT_BINARY_DIR} -D VERSION=${PROJECT_VERSION}
    -D SUMMARY=${PROJECT_DESCRIPTION} -D PROCESSOR=${CMAKE_SYSTEM_PROCESSOR} -P ${CMAKE_CURRENT_SOURCE_DIR}/cmake/wheel.cmake)

set(CPACK_PACKAGE_DIRECTORY ${CMAKE_CURRENT_BINARY_DIR}/dist)
set(CPACK_PACKAGE_NAME kvcodec)
set(CPACK_PACKAGE_FILE_NAME kvcodec-${PROJECT_VERSION}-linux-${CMAKE_SYSTEM_PROCESSOR})
set(CPACK_PACKAGE_VENDOR "the kvcodec authors")
set(CPACK_PACKAGE_CONTACT "the kvcodec authors <kvcodec@localhost>")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY ${PROJECT_DESCRIPTION})
set(CPACK_RESOURCE_FILE_LICENSE ${CMAKE_CURRENT_SOURCE_DIR}/LICENSE)
set(CPACK_GENERATOR "DEB;TGZ")
set(CPACK_STRIP_FILES ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SECTION science)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)  # what the program is linked with, by the packages of this machine
if(OPENBLAS_LIBRARY MATCHES "/openblas-openmp/[^/]*\\.so")
  set(CPACK_DEBIAN_PACKAGE_DEPENDS libopenblas0-openmp)  # any build of OpenBLAS goes with the symbols, and apt takes the pthread one
endif()
if(KVCODEC_HAVE_CURL)
  set(CPACK_DEBIAN_PACKAGE_RECOMMENDS libcurl4)  # which is loaded, not linked with
endif()
set(CPACK_THREADS 0)
include(CPack)
