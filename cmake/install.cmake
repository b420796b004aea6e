# `cmake --install` and CPack take from here: the program with its pages and completions, the libraries with their headers for
# find_package(kvcodec), the demo, and packages of all that.
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

install(FILES LICENSE CHANGELOG.md CITATION.cff README.md formats/FORMAT.md DESTINATION ${CMAKE_INSTALL_DOCDIR} COMPONENT program)

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
install(DIRECTORY data/demo-model data/text DESTINATION ${CMAKE_INSTALL_DATADIR}/kvcodec COMPONENT demo)
install(PROGRAMS data/quickstart-chain.sh DESTINATION ${CMAKE_INSTALL_DATADIR}/kvcodec COMPONENT demo)

include(cmake/packages.cmake)
