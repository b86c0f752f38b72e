# SPDX-License-Identifier: Apache-2.0
# find_package(usp): the same files serve the build tree and the install tree. Include after all targets.
include(CMakePackageConfigHelpers)

get_property(usp_components GLOBAL PROPERTY USP_COMPONENTS)
get_property(usp_consumer_packages GLOBAL PROPERTY USP_CONSUMER_PACKAGES)
list(REMOVE_DUPLICATES usp_consumer_packages)
list(JOIN usp_components " " usp_component_text)
set(usp_find_dependencies "")
foreach(package IN LISTS usp_consumer_packages)
  string(APPEND usp_find_dependencies "find_dependency(${package})\n")
endforeach()

set(usp_package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/usp)
configure_package_config_file(
  ${PROJECT_SOURCE_DIR}/configs/cmake/uspConfig.cmake.in ${PROJECT_BINARY_DIR}/uspConfig.cmake
  INSTALL_DESTINATION ${usp_package_dir} NO_SET_AND_CHECK_MACRO)
write_basic_package_version_file(${PROJECT_BINARY_DIR}/uspConfigVersion.cmake COMPATIBILITY SameMinorVersion)

export(EXPORT usp-targets NAMESPACE usp:: FILE ${PROJECT_BINARY_DIR}/usp-targets.cmake)
install(EXPORT usp-targets NAMESPACE usp:: DESTINATION ${usp_package_dir})
install(FILES ${PROJECT_BINARY_DIR}/uspConfig.cmake ${PROJECT_BINARY_DIR}/uspConfigVersion.cmake
        DESTINATION ${usp_package_dir})

# pkg-config: the C API's shared library. Paths are relative to the file, so that an install tree can be moved.
file(RELATIVE_PATH usp_pc_prefix /${CMAKE_INSTALL_LIBDIR}/pkgconfig /)
string(REGEX REPLACE "/$" "" usp_pc_prefix "${usp_pc_prefix}")
configure_file(${PROJECT_SOURCE_DIR}/configs/cmake/usp.pc.in ${PROJECT_BINARY_DIR}/usp.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/usp.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
install(FILES ${PROJECT_SOURCE_DIR}/LICENSE ${PROJECT_SOURCE_DIR}/NOTICE DESTINATION ${CMAKE_INSTALL_DOCDIR})
