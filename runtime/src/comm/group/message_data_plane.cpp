// SPDX-License-Identifier: Apache-2.0
#include "usp/comm/data_plane.hpp"

#include <fmt/format.h>

#include <string>
#include <utility>

namespace usp::comm {
namespace {

/// Passes in flight differ in the upper bits of their tags; a pass has far fewer transfers.
constexpr int pass_shift = 20;

class MessageChannels final : public Channels {
 public:
  /// @param passes the transport's count of passes, equal on all ranks
  MessageChannels(Communicator& communicator, i64& passes, const std::vector<ChannelEnd>& ends)
      : communicator_(communicator), passes_(passes), tickets_(ends.size()) {
    messages_.reserve(ends.size());
    posted_.resize(ends.size());
    i64 regions = 0;
    for (const ChannelEnd& end : ends) {
      ends_.push_back(end.message());
      regions += end.region_count;
    }
    communicator.reserve(static_cast<i64>(ends.size()), regions);
  }

  void begin() override {
    first_tag_ = passes_++ << pass_shift;
    communicator_.progress();
  }
  void start(const ChannelStart* starts, i64 count) override {
    messages_.clear();
    for (i64 i = 0; i < count; ++i) {
      Message& message = messages_.emplace_back(ends_[static_cast<std::size_t>(starts[i].channel)]);
      message.tag += first_tag_;
      message.regions = starts[i].regions;
      message.region_count = starts[i].region_count;
    }
    communicator_.post(messages_.data(), count, posted_.data());
    for (i64 i = 0; i < count; ++i)
      tickets_[static_cast<std::size_t>(starts[i].channel)] = posted_[static_cast<std::size_t>(i)];
  }
  i64 wait(std::int32_t channel) override {
    return communicator_.wait(tickets_[static_cast<std::size_t>(channel)]);
  }
  void progress() override { communicator_.progress(); }

 private:
  Communicator& communicator_;
  i64& passes_;
  i64 first_tag_ = 0;
  std::vector<Message> ends_;      ///< per channel, without regions
  std::vector<Message> messages_;  ///< of one start
  std::vector<Ticket> posted_;     ///< of messages_
  std::vector<Ticket> tickets_;    ///< per channel
};

class MessageDataPlane final : public DataPlane {
 public:
  explicit MessageDataPlane(Communicator& communicator)
      : communicator_(communicator), control_(communicator) {}
  MessageDataPlane(std::unique_ptr<Communicator> communicator, Communicator& control)
      : owned_(std::move(communicator)), communicator_(*owned_), control_(control) {}

  [[nodiscard]] const char* name() const override { return communicator_.name(); }
  [[nodiscard]] Communicator& control() override { return control_; }
  [[nodiscard]] std::unique_ptr<Channels> connect(const std::vector<ChannelEnd>& ends) override {
    return std::make_unique<MessageChannels>(communicator_, passes_, ends);
  }
  [[nodiscard]] std::string capture_obstacle() const override {
    if (communicator_.capturable()) return "";
    return fmt::format("the messages of {} pass through the host", name());
  }
  void check() override { communicator_.progress(); }

 private:
  std::unique_ptr<Communicator> owned_;
  Communicator& communicator_;
  Communicator& control_;
  i64 passes_ = 0;
};

}  // namespace

kernels::Arena* DataPlane::peer_arena(kernels::Memory& /*memory*/) {
  return nullptr;
}

std::unique_ptr<DataPlane> make_message_data_plane(Communicator& communicator) {
  return std::make_unique<MessageDataPlane>(communicator);
}

std::unique_ptr<DataPlane> make_message_data_plane(std::unique_ptr<Communicator> communicator,
                                                   Communicator& control) {
  return std::make_unique<MessageDataPlane>(std::move(communicator), control);
}

}  // namespace usp::comm
