// SPDX-License-Identifier: Apache-2.0
#include "../failure/faults.hpp"
#include "../failure/wait_watch.hpp"

#include "usp/comm/data_plane.hpp"

#include <fmt/format.h>

#include <atomic>
#include <cmath>
#include <string>
#include <utility>

namespace usp::comm {
namespace {

/// Passes in flight differ in the upper bits of their tags; a pass has far fewer transfers.
constexpr int pass_shift = 20;

/// Receives that a kernel of the host awaits: its progress completes them, and sets their flags.
class HostGates {
 public:
  HostGates(Communicator& communicator, const std::vector<ChannelEnd>& ends)
      : communicator_(communicator), ends_(ends.size()), flags_(ends.size(), 0) {
    open_.reserve(ends.size());
    for (std::size_t i = 0; i < ends.size(); ++i) ends_[i].message = ends[i].message();
  }

  void begin() {
    ++epoch_;
    open_.clear();
    watch_.reset();
    for (End& end : ends_) end.state = End::State::plain;
  }
  [[nodiscard]] ReceiveGate gate(std::int32_t channel, Ticket ticket) {
    End& end = at(channel);
    end.state = End::State::awaited;
    end.ticket = ticket;
    open_.push_back(channel);
    if (!watch_) watch_.emplace(communicator_.options());
    return {
        {&flags_[static_cast<std::size_t>(channel)], epoch_},
        {nullptr, static_cast<std::int64_t>(std::ceil(1e9 * communicator_.options().watchdog_s)), &fault_}};
  }
  /// Between tiles, and while a kernel waits.
  void progress() {
    if (open_.empty()) return;
    if (watch_->look() == WaitState::interrupted)
      end_job(interrupted_fault(at(open_.front()).message, communicator_.rank()));
    std::erase_if(open_, [&](std::int32_t channel) {
      End& end = at(channel);
      const std::optional<i64> moved = communicator_.test(end.ticket);
      if (!moved) return false;
      end.state = End::State::arrived;
      end.moved = *moved;
      std::atomic_ref(flags_[static_cast<std::size_t>(channel)]).store(epoch_, std::memory_order_release);
      return true;
    });
  }
  /// After the kernel's call; empty: the message is still to be waited for.
  [[nodiscard]] std::optional<i64> wait(std::int32_t channel) {
    const End& end = at(channel);
    if (end.state == End::State::plain) return {};
    if (fault_ != 0)
      end_job(late_fault(end.message, communicator_.rank(), {end.message.peer},
                         communicator_.options().watchdog_s, ""));
    if (end.state == End::State::arrived) return end.moved;
    std::erase(open_, channel);
    return {};
  }

 private:
  struct End {
    enum class State : std::uint8_t { plain, awaited, arrived };
    Message message;
    State state = State::plain;
    Ticket ticket = 0;
    i64 moved = 0;
  };
  [[nodiscard]] End& at(std::int32_t channel) { return ends_[static_cast<std::size_t>(channel)]; }
  [[noreturn]] void end_job(const CommunicationFault& fault) {
    communicator_.abort(fault);
    throw CommunicationError(fault);
  }

  Communicator& communicator_;
  std::vector<End> ends_;             ///< per channel
  std::vector<std::uint32_t> flags_;  ///< per channel
  std::vector<std::int32_t> open_;    ///< channels that are awaited
  std::optional<WaitWatch> watch_;    ///< of this pass's waits
  std::uint32_t epoch_ = 0, fault_ = 0;
};

class MessageChannels final : public Channels {
 public:
  /// @param passes the transport's count of passes, equal on all ranks
  MessageChannels(Communicator& communicator, i64& passes, bool on_host, const std::vector<ChannelEnd>& ends)
      : communicator_(communicator), passes_(passes), tickets_(ends.size()) {
    if (on_host) gates_.emplace(communicator, ends);
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
    if (gates_) gates_->begin();
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
  [[nodiscard]] std::optional<ReceiveGate> gate(std::int32_t channel) override {
    if (!gates_) return {};
    return gates_->gate(channel, tickets_[static_cast<std::size_t>(channel)]);
  }
  i64 wait(std::int32_t channel) override {
    if (const std::optional<i64> moved = gates_ ? gates_->wait(channel) : std::nullopt) return *moved;
    return communicator_.wait(tickets_[static_cast<std::size_t>(channel)]);
  }
  void progress() override {
    communicator_.progress();
    if (gates_) gates_->progress();
  }

 private:
  Communicator& communicator_;
  i64& passes_;
  i64 first_tag_ = 0;
  std::vector<Message> ends_;      ///< per channel, without regions
  std::vector<Message> messages_;  ///< of one start
  std::vector<Ticket> posted_;     ///< of messages_
  std::vector<Ticket> tickets_;    ///< per channel
  std::optional<HostGates> gates_;
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
    return std::make_unique<MessageChannels>(communicator_, passes_, owned_ == nullptr, ends);
  }
  [[nodiscard]] std::string capture_obstacle() const override {
    if (communicator_.capturable()) return "";
    return fmt::format("the messages of {} pass through the host", name());
  }
  void check() override { communicator_.progress(); }

 private:
  std::unique_ptr<Communicator> owned_;  ///< carries payload of GPUs; null: that of the host
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
