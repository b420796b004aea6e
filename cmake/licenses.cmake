# Licences of third-party parts of the program. third-party-licenses.txt has the text for all that it contains, as they require: all libraries
# of a static build, only headers of any other. copyright, in Debian's machine-readable form, also lists libraries that it is linked with or
# loads. Both come from Debian's packages; elsewhere a distributor must collect them.

include(${CMAKE_CURRENT_LIST_DIR}/owners.cmake)
set(contained ${CLI11_DIR}/CLI11Config.cmake ${nlohmann_json_DIR}/nlohmann_jsonConfig.cmake ${fmt_DIR}/fmt-config.cmake)
set(linked ${OPENBLAS_LIBRARY} ${openblas_archives} ${hdf5_archives} ${OpenMP_gomp_LIBRARY})
foreach(library PCRE2 XXHASH UTF8PROC HDF5 ZLIB)
  list(APPEND linked ${${library}_LINK_LIBRARIES})
endforeach()
if(KVCODEC_STATIC)
  list(APPEND contained ${linked})
  set(linked)
elseif(KVCODEC_ONEDNN_INCLUDE_DIR AND KVCODEC_ONEDNN_LIBRARY)
  list(APPEND linked ${KVCODEC_ONEDNN_LIBRARY})
endif()
if(KVCODEC_MPI)
  list(APPEND linked ${MPI_CXX_LIBRARIES})
endif()
set(loaded)
if(KVCODEC_HAVE_CURL)
  list(APPEND loaded ${CURL_LINK_LIBRARIES})
endif()
kvcodec_licenses(${CMAKE_CURRENT_BINARY_DIR}/third-party-licenses.txt ${contained})

set(copyright ${CMAKE_CURRENT_BINARY_DIR}/copyright)
file(WRITE ${copyright} [[
Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/
Upstream-Name: kvcodec
Upstream-Contact: the kvcodec authors
Comment: third-party/NAME/* are libraries of others, not files of this project. Their version and licence are those of
 Debian's source package of that name.

Files: *
Copyright: 2026 the kvcodec authors
License: Apache-2.0

Files: data/text/*
Copyright: none; data/text/README.md names the sources
License: public-domain
 The works are in the public domain.
]])
kvcodec_owners(contained_packages ${contained})
kvcodec_owners(linked_packages ${linked})
kvcodec_owners(loaded_packages ${loaded})
kvcodec_copyright(${copyright} "the program contains it; its licence is in third-party-licenses.txt" ${contained_packages})
list(REMOVE_ITEM linked_packages ${contained_packages})
kvcodec_copyright(${copyright} "the program is linked with it, and contains at most its headers" ${linked_packages})
kvcodec_copyright(${copyright} "the program loads it for files on servers" ${loaded_packages})
if(KVCODEC_HAVE_CUDA)
  file(APPEND ${copyright} "\nFiles: third-party/cudart/*\nVersion: ${CMAKE_CUDA_COMPILER_VERSION}\nCopyright: NVIDIA Corporation\n"
    "License: NVIDIA-CUDA-EULA\nComment: the program contains it; its licence is the toolkit's EULA\n")
endif()
file(STRINGS ${copyright} licenses REGEX "^License: ")
list(TRANSFORM licenses REPLACE "^License: " "")
list(REMOVE_DUPLICATES licenses)
list(REMOVE_ITEM licenses public-domain)
list(SORT licenses)
foreach(license ${licenses})
  set(place "third-party-licenses.txt, or /usr/share/doc/PACKAGE/copyright of the library's package")
  if(license STREQUAL Apache-2.0)
    set(place "/usr/share/common-licenses/Apache-2.0 of Debian, and LICENSE")
  elseif(license MATCHES GPL)
    set(place "${place}, and in\n /usr/share/common-licenses/GPL-3 and LGPL-2.1 of Debian")
  endif()
  file(APPEND ${copyright} "\nLicense: ${license}\n The text is in ${place}.\n")
endforeach()
install(FILES ${copyright} DESTINATION ${CMAKE_INSTALL_DOCDIR} COMPONENT program)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/third-party-licenses.txt DESTINATION ${CMAKE_INSTALL_DOCDIR} COMPONENT program OPTIONAL)
