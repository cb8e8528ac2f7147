//! MQTT: answers calls and bindings over a broker. Of rumqttc it uses only the codec.
//!
//! Files, in reading order:
//! * `client/` - an MQTT client that knows nothing of inference; its `mod.rs` has the map:
//!   * `packet.rs` - packets and properties, the same for MQTT 5 and 3.1.1
//!   * `codec.rs`, `codec/` - packets to bytes and back, through rumqttc
//!   * `framing.rs`, `framing/` - splits the stream into packets in bounded memory
//!   * `receipt.rs` - the end of a published message, for the part that published it
//!   * `session.rs`, `session/` - packet ids, resending, acknowledgements in order
//!   * `connection.rs` - one connection through `egress`, from CONNECT to its end
//!   * `fuzz.rs` - properties that hold for any bytes from a broker
//! * `topics.rs` - names of topics, valid by construction
//! * `topics/` - `filter.rs` and `template.rs`; `device.rs` has Ledge's own topics
//! * `caller.rs` - the sender of a request, and its permission
//! * `request.rs`, `answer.rs` - a message to a call, or the reason why it gets no answer; an answer or error to a
//!   message
//! * `field_path.rs` - values in JSON, by JSONPath
//! * `bindings.rs` - bindings: messages of devices that know nothing of Ledge
//! * `bindings/` - `config.rs` reads `[[mqtt.bindings]]`, `error.rs` has the reasons why a message does not fit,
//!   `when.rs` says which messages are meant, `extract.rs`, `rows.rs`, `event_time.rs` and `bare_value.rs` read
//!   messages and answers, `check.rs` compares with feature views and models
//! * `rate_limit.rs` - the rate limit of each topic: the newest message is kept
//! * `binding_message.rs`, `binding_message/` - a message of a binding, up to its push and its published answer
//! * `publisher.rs` - messages of other parts of the daemon: what they publish, and the topics that they hear
//! * `push.rs` - pushes of bindings into the feature store, retried while the store cannot take them
//! * `held_bytes.rs` - counts the bytes of messages in memory
//! * `plan.rs` - which session has which subscription, and which bindings a delivery is for
//! * `subscriptions.rs` - subscriptions of one session, and those that the broker refused
//! * `model_wait.rs` - messages that wait until their model is loaded
//! * `dispatcher.rs` - between session and serving: starts calls, settles deliveries, refuses when memory is full
//! * `dispatcher/` - `binding_messages.rs` does the same for bindings, through their rate limits
//! * `connect.rs` - connecting and disconnecting: password, version, last will
//! * `keep_alive.rs` - pings, and the time after which the broker counts as gone
//! * `gateway.rs` - the task of one session: connects, reads, writes, reports, disconnects in order
//! * `session_plans.rs` - the plan that all sessions share, and the end of a session
//! * `sessions.rs` - the sessions besides the main one: when they are there, and what happens where the broker refuses
//!   them
//! * `dry_run.rs` - one message without a broker: `ledge mqtt try`
//! * `check.rs` - what the broker grants, and whether messages come: `ledge mqtt check`
//! * `config.rs`, `config/` - `[mqtt]`
//! * `part.rs`, `metrics.rs` - MQTT as a part of the daemon, and its metrics
//! * `fuzz.rs` - properties that hold for any topic and any message
//!
//! Folders without a named file hold tests.
//!
//! Invariants:
//! * The task of a session never waits for an inference. It owns connection, session and dispatcher, so none has a
//!   lock.
//! * A message comes once to each binding that takes it, whatever subscriptions overlap (`plan.rs`). No filter is wider
//!   than a configured one.
//! * Bindings that only push rows wait for the feature store and for no model. Every other message waits for its model.
//! * The session is pure. A QoS 1 message stays in it until the broker acknowledged or refused it, except one that is
//!   too large, replaced unsent by a newer retained one, or given up.
//! * Acknowledgements are sent in the order of the deliveries, each after its message is settled.
//! * Every message is settled, also an unreadable one: the broker delivers an unsettled one again on each connection.
//! * Memory is bounded: requests being answered, kept messages and waiting answers count against `max_memory_bytes`.
//!   With memory full the reading goes on, and a call is answered 429. Reading stops only while 4096 messages are being
//!   answered, or messages that wait for models take half of the memory.
//! * Nothing is sent except under an `EgressContent`. No connection is opened past `egress`.
//! * `rate_limit.rs`, `keep_alive.rs`, `plan.rs`, `client/session.rs` and `bindings/` are pure, but for the time zones
//!   of the configuration. The time is passed in.
//! * Only `client/codec.rs` and `client/codec/` know rumqttc.
//!
//! # Where it is decided
//!
//! * A message is meant for a binding: `bindings/when.rs`, before the rate limit (`dispatcher/binding_messages.rs`)
//! * A message waits for its model: `model_wait.rs`, by `Repository::wait_while_loading`
//! * The time of the next attempt to connect: `gateway.rs`, by `base/backoff.rs`. A refused session besides the main
//!   one: `sessions.rs`
//! * The 401 and 403 of a message: `caller.rs`
//! * The memory of messages: `held_bytes.rs`, for `mqtt.max_memory_bytes`
//!
//! # One message
//!
//! A QoS 1 request from the broker to its acknowledgement:
//!
//! 1. `gateway.rs` always reads. `framing.rs` cuts the packet out, `codec.rs` decodes it; the payload stays a slice of
//!    the packet's memory. The payload of a packet larger than the free memory (`Dispatcher::free_memory`) is skipped,
//!    and only topic and properties are handed on.
//! 2. `MqttSession::receive` notes the packet id as a pending acknowledgement and hands out a `PendingDelivery`. A
//!    message delivered again while the first delivery is in progress ends here: one end settles both.
//! 3. `Dispatcher` asks `DeviceTopics::route`: the message is a call to this box or its group, or else
//!    `SubscriptionPlan::takers` says which bindings it is for, each through its rate limit. The delivery then needs as
//!    many settlements as there are bindings; a rate limit settles its part at once.
//! 4. `CallMessage::read` makes an `InferenceCall`: target from the topic, deadline from the message expiry, form from
//!    content type or first bytes. A message that could loop or pass for something else gets no answer
//!    (`UnansweredReason`): it is settled, counted and logged. One that is too large or finds no memory is answered
//!    here, with 413 or 429.
//! 5. A task of its own waits for the model (`ModelWait`) and runs `protocol::call::answer`, as HTTP does; from there
//!    it is one request. Its end, a panic included, comes back over a channel when `FinishGuard` is dropped.
//! 6. `Dispatcher::finish` gives the answer, or the error as an answer, to `MqttSession::publish` with the delivery
//!    that it settles.
//! 7. `MqttSession::next` yields it when the broker's window and packet size allow; `EgressWriter::put` sends it as
//!    `EgressContent::Answer`.
//! 8. The broker's PUBACK settles the delivery. The PUBACK of this box follows when every earlier delivery of this
//!    connection is settled.
//!
//! A QoS 0 request has no delivery: its answer is QoS 0 and nothing waits for it.
//!
//! At the end (`ConnectionPhase`) the box unsubscribes from shared subscriptions, leaves new messages unsettled so that
//! they are delivered again, answers and acknowledges those in progress, publishes `offline`, and sends DISCONNECT,
//! which withholds the last will.
#![forbid(unsafe_code)]

pub mod answer;
pub mod binding_message;
pub mod bindings;
mod caller;
pub mod check;
pub mod client;
pub mod config;
pub mod connect;
pub mod dispatcher;
pub mod dry_run;
pub mod field_path;
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzz;
pub mod gateway;
pub mod held_bytes;
pub mod keep_alive;
mod metrics;
mod model_wait;
pub mod part;
pub mod plan;
pub mod publisher;
pub mod push;
pub mod rate_limit;
pub mod request;
mod session_plans;
mod sessions;
pub mod subscriptions;
pub mod topics;
