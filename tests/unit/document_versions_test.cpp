// SPDX-License-Identifier: Apache-2.0
#include "usp/base/error.hpp"
#include "usp/base/file.hpp"
#include "usp/base/json_format.hpp"
#include "usp/base/presets.hpp"
#include "usp/planner/calibration.hpp"
#include "usp/planner/model_config.hpp"
#include "usp/schedule/plan_file.hpp"
#include "usp/topology/cluster_io.hpp"
#include "usp/topology/devices.hpp"

#include <gtest/gtest.h>

#include <functional>

namespace usp {
namespace {

struct Format {
  const char* name;
  std::string text;
  std::function<void(const std::string& text)> read;
  const char* remedy;
};

std::vector<Format> formats() {
  return {{"usp.cluster", shipped_preset("clusters", "dgx-h100").text,
           [](const std::string& text) { (void)topology::read_cluster_json(text, "file.json"); }, "usp topo"},
          {"usp.devices", shipped_preset("devices", "devices").text,
           [](const std::string& text) { (void)topology::read_device_presets(text, "file.json"); },
           "CHANGELOG.md"},
          {"usp.plan", read_file(USP_TEST_DATA "/plans/attention_3x2.json"),
           [](const std::string& text) { (void)read_plan(text, "file.json"); }, "usp plan"},
          {"usp.calibration", shipped_preset("calibrations", "l40s").text,
           [](const std::string& text) { (void)parse_calibration(text, "file.json"); }, "CHANGELOG.md"}};
}

std::string with_version(const std::string& text, int version) {
  Json json = parse_json(text, "file.json");
  json["version"] = version;
  return json.dump();
}

TEST(DocumentVersions, ReadersRefuseOthersByName) {
  for (const Format& format : formats()) {
    SCOPED_TRACE(format.name);
    EXPECT_NO_THROW(format.read(format.text));
    const std::pair<int, const char*> others[] = {{1, "older"}, {3, "newer"}};
    for (const auto& [version, age] : others) {
      try {
        format.read(with_version(format.text, version));
        FAIL() << "version " << version << " is read";
      } catch (const InvalidInput& error) {
        EXPECT_EQ(error.code(), ExitCode::invalid_input);
        EXPECT_EQ(error.where().token, "/version");
        const std::string message = error.what();
        for (const char* part : {"file.json", format.name, age, "reads version 2",
                                 version == 1 ? format.remedy : "use the usp that wrote it"})
          EXPECT_NE(message.find(part), std::string::npos) << part << " in " << message;
        EXPECT_NE(message.find(" version " + std::to_string(version)), std::string::npos) << message;
      }
    }
  }
}

TEST(DocumentVersions, ACalibrationWithoutAFormatIsOfVersionOne) {
  Json json = parse_json(shipped_preset("calibrations", "l40s").text, "file.json");
  json.erase("format");
  json["version"] = 1;
  try {
    (void)parse_calibration(json.dump(), "file.json");
    FAIL() << "version 1 is read";
  } catch (const InvalidInput& error) {
    EXPECT_NE(std::string(error.what()).find("version 1"), std::string::npos) << error.what();
    EXPECT_NE(std::string(error.what()).find("CHANGELOG.md"), std::string::npos) << error.what();
  }
}

TEST(DocumentVersions, KeysOfVersionOneAreUnknown) {
  const std::string cluster =
      R"({"format":"usp.cluster","version":2,"specs":[],"nodes":[{"id":0,"pcie_gb_s":null}],
                                  "devices":[]})";
  EXPECT_THROW((void)topology::read_cluster_json(cluster, "f"), InvalidInput);
  EXPECT_EQ(parse_json(model_json(read_model_config(shipped_preset("models", "qwen3-8b").text, "f")), "m")
                .at("version"),
            json_schema_version);
}

}  // namespace
}  // namespace usp
