// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "properties.hpp"

#include "usp/planner/explain.hpp"
#include "usp/planner/model_config.hpp"
#include "usp/planner/step_input.hpp"
#include "usp/schedule/plan_file.hpp"
#include "usp/topology/cluster_io.hpp"

#include <string>

/// Properties of the readers of JSON, in the terms of properties.hpp.
namespace usp::fuzz {

/// What was read is written and read again without a change.
inline bool cluster_json(const std::string& text) {
  try {
    const std::string written = topology::write_cluster_json(topology::read_cluster_json(text, "input"));
    require(topology::write_cluster_json(topology::read_cluster_json(written, "written")) == written,
            "the round trip changes a cluster");
    return true;
  } catch (const InvalidInput& error) {
    require(error.where().file != "written", error.what());
    return false;
  }
}

inline bool model_config(const std::string& text) {
  try {
    const Model model = read_model_config(text, "input");
    require(!model.kinds.empty(), "a model without layers");
    require(!model_json(model).empty(), "a model that prints nothing");
    return true;
  } catch (const InvalidInput&) {
    return false;
  }
}

/// A request that is read has all that a search needs.
inline bool plan_request(const std::string& text) {
  try {
    const auto input = read_plan_request(text, "input", [](const std::string&) {});
    require(input->request.workload.seq > 0, "a request without tokens");
    require(!input->request.model->kinds.empty(), "a request without layers");
    require(input->request.cluster == &input->cluster && input->request.calibration == &input->calibration,
            "a request that points elsewhere");
    return true;
  } catch (const InvalidInput&) {
    return false;
  }
}

inline bool attention_request(const std::string& text) {
  try {
    const auto input = read_attention_request(text, "input", [](const std::string&) {});
    const AttentionRequest& request = input->request;
    require(request.documents.cu_q.back() == request.shape.q_tokens,
            "documents of other tokens than the call's");
    require(request.cluster == &input->cluster && request.calibration == &input->calibration,
            "a request that points elsewhere");
    return true;
  } catch (const InvalidInput&) {
    return false;
  }
}

/// Reads a plan whatever digest it states: mutations would all stop there.
inline PlanFile read_plan_resigned(const std::string& text) {
  try {
    return read_plan(text, "input");
  } catch (const InvalidInput& error) {
    const std::string found = "its digest is ", stated = "the file states ";
    const std::size_t a = error.problem().find(found), b = error.problem().find(stated);
    if (error.where().token != "/digest" || a == std::string::npos || b == std::string::npos) throw;
    const std::size_t begin = a + found.size(), old = b + stated.size();
    const std::string right = error.problem().substr(begin, error.problem().find(',', begin) - begin);
    const std::string wrong = error.problem().substr(old, error.problem().rfind(';') - old);
    std::string resigned = text;
    const std::size_t at = wrong.empty() ? std::string::npos : resigned.rfind(wrong);
    if (at == std::string::npos) throw;
    return read_plan(resigned.replace(at, wrong.size(), right), "resigned");
  }
}

/// What was read is written and read again without a change, and a small plan can be explained.
inline bool plan_file(const std::string& text) {
  try {
    const PlanFile plan = read_plan_resigned(text);
    const std::string written = write_plan(plan);
    require(write_plan(read_plan(written, "written")) == written, "the round trip changes a plan");
    if (plan.mesh.size() > 64 || plan.capacity_tokens > (1 << 20) || plan.layers.empty()) return true;
    for (const Pass pass : {Pass::forward, Pass::backward}) {
      if (pass == Pass::backward && !plan.training) continue;
      ExplainRequest request;
      request.rank = plan.mesh.size() - 1;
      request.pass = pass;
      require(!explain_text(plan, request).empty(), "a plan explained by nothing");
    }
    return true;
  } catch (const InvalidInput& error) {
    require(error.where().file != "written", error.what());
    return false;
  }
}

}  // namespace usp::fuzz
