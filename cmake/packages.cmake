# Packages, in BUILD/dist. The target package makes a .tar.gz of all, and a .deb per component (cmake/deb.cmake completes them):
#   kvcodec        the program with its pages and completions; in a static build it needs the C library alone
#   libkvcodec1    the library in C, linked with Debian's libraries
#   kvcodec-dev    headers, archives, files for find_package(kvcodec)
#   kvcodec-demo   the demo model and the texts, 7 MB that the program does not need
# The Python package has no .deb: torch and transformers, which its users have, come by pip into environments that do not see Debian's
# modules. The target wheel makes a package for pip. USES_TERMINAL: one installation at a time, like CPack's.
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
set(CPACK_PACKAGE_CONTACT "${KVCODEC_MAINTAINER}")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "")  # CPack would put it before each description
set(CPACK_RESOURCE_FILE_LICENSE ${CMAKE_CURRENT_SOURCE_DIR}/LICENSE)
set(CPACK_GENERATOR "DEB;TGZ")
set(CPACK_STRIP_FILES ON)
set(CPACK_THREADS 1)  # with more of them, their number decides the bytes of an archive
set(CPACK_PRE_BUILD_SCRIPTS ${CMAKE_CURRENT_SOURCE_DIR}/cmake/deb.cmake)

set(CPACK_KVCODEC_STATIC ${KVCODEC_STATIC})  # for that script
set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_COMPONENTS_ALL program development demo)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_COMPRESSION_TYPE xz)
set(CPACK_DEBIAN_PACKAGE_SECTION science)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)  # what a component is linked with, by the packages of this machine
set(CPACK_DEBIAN_PACKAGE_GENERATE_SHLIBS ON)  # the same of libkvcodec1 for others
set(CPACK_DEBIAN_PACKAGE_GENERATE_SHLIBS_POLICY ">=")
if(KVCODEC_HAVE_CURL)
  set(curl libcurl4)  # which is loaded, not linked with
endif()
if(OPENBLAS_LIBRARY MATCHES "/openblas-openmp/")
  set(openblas libopenblas0-openmp)  # any build of OpenBLAS goes with the symbols, and apt takes the pthread one
endif()

set(CPACK_DEBIAN_PROGRAM_PACKAGE_NAME kvcodec)
set(CPACK_DEBIAN_PROGRAM_DESCRIPTION "compressor of the key/value caches of language models
The program runs a model over text to get its key/value cache, or imports
one, compresses it by one of several codecs, restores it, and measures what
the model loses.")
set(CPACK_DEBIAN_PROGRAM_PACKAGE_RECOMMENDS ${curl})
set(CPACK_DEBIAN_PROGRAM_PACKAGE_SUGGESTS kvcodec-demo)
if(NOT KVCODEC_STATIC)
  set(CPACK_DEBIAN_PROGRAM_PACKAGE_DEPENDS ${openblas})
endif()

set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_NAME kvcodec-dev)
set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_SECTION libdevel)
set(CPACK_DEBIAN_DEVELOPMENT_DESCRIPTION "headers and libraries of kvcodec
Algorithms and files of kvcodec for programs in C++, found by CMake's
find_package(kvcodec), and the header of its library in C.")
kvcodec_owners(needed ${contained} ${linked})
list(FILTER needed EXCLUDE REGEX "^(libc6|libgcc|libgfortran)|^libcli11-dev$")
list(APPEND needed pkg-config)

set(CPACK_DEBIAN_DEMO_PACKAGE_NAME kvcodec-demo)
set(CPACK_DEBIAN_DEMO_PACKAGE_ARCHITECTURE all)
set(CPACK_DEBIAN_DEMO_DESCRIPTION "demo model and texts of kvcodec
A small language model, texts in the public domain, and the script
/usr/share/kvcodec/quickstart-chain.sh, which compresses caches of them.")
set(CPACK_DEBIAN_DEMO_PACKAGE_RECOMMENDS kvcodec)

if(TARGET kvcodec_shared)
  list(APPEND CPACK_COMPONENTS_ALL library)
  set(CPACK_DEBIAN_LIBRARY_PACKAGE_NAME libkvcodec1)
  set(CPACK_DEBIAN_LIBRARY_PACKAGE_SECTION libs)
  set(CPACK_DEBIAN_LIBRARY_DESCRIPTION "library of kvcodec in C
Reads kvcodec's files into memory of the caller, and writes them from it:
for engines and other languages. See kvcodec-library(7) in kvcodec.")
  set(CPACK_DEBIAN_LIBRARY_PACKAGE_DEPENDS ${openblas})
  set(CPACK_DEBIAN_LIBRARY_PACKAGE_RECOMMENDS ${curl})
  file(WRITE ${CMAKE_CURRENT_BINARY_DIR}/triggers "activate-noawait ldconfig\n")
  set(CPACK_DEBIAN_LIBRARY_PACKAGE_CONTROL_EXTRA ${CMAKE_CURRENT_BINARY_DIR}/triggers)
  list(APPEND needed "libkvcodec1 (= ${PROJECT_VERSION})")
endif()
list(JOIN needed ", " CPACK_DEBIAN_DEVELOPMENT_PACKAGE_DEPENDS)
include(CPack)
