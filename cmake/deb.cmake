# Adds what Debian wants of each .deb to the files that CPack has collected: its licence, a list of changes, compressed pages.
# Run by CPack, also for other kinds of packages, which stay as they are. Archives take their times from SOURCE_DATE_EPOCH, if it is set.
if(NOT CPACK_GENERATOR STREQUAL DEB)
  return()
endif()
string(TIMESTAMP date "%a, %d %b %Y %H:%M:%S +0000" UTC)
foreach(component ${CPACK_COMPONENTS_ALL})
  set(tree ${CPACK_TEMPORARY_DIRECTORY}/${component}/usr/share)
  string(TOUPPER ${component} name)
  set(package ${CPACK_DEBIAN_${name}_PACKAGE_NAME})
  set(doc ${tree}/doc/${package})
  file(MAKE_DIRECTORY ${doc})
  if(NOT EXISTS ${doc}/copyright)
    file(COPY ${CPACK_TEMPORARY_DIRECTORY}/program/usr/share/doc/kvcodec/copyright DESTINATION ${doc})
  endif()
  file(WRITE ${doc}/changelog "kvcodec (${CPACK_PACKAGE_VERSION}) unstable; urgency=medium\n\n"
    "  * See CHANGELOG.md of the package kvcodec.\n\n -- ${CPACK_PACKAGE_CONTACT}  ${date}\n")
  # A static program is there to contain its libraries. Any other searches private folders of Debian's packages, no others: the OpenMP
  # build of OpenBLAS must be found before others.
  set(overrides ${tree}/lintian/overrides/${package})
  if(component STREQUAL program AND CPACK_KVCODEC_STATIC)
    file(WRITE ${overrides} "${package}: embedded-library *\n")
  elseif(component MATCHES "^(program|library)$")
    file(WRITE ${overrides} "${package}: custom-library-search-path RUNPATH /usr/lib/*/openblas-openmp *\n"
      "${package}: custom-library-search-path RUNPATH /usr/lib/*/hdf5/serial *\n")
  endif()
  file(GLOB pages ${tree}/man/man*/*.[0-9])
  execute_process(COMMAND gzip -9n ${doc}/changelog ${pages} COMMAND_ERROR_IS_FATAL ANY)
endforeach()
