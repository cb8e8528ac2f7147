//! MQTT: answers calls and bindings over one connection to a broker. The only code that knows rumqttc, of which it uses
//! the codec.
//!
//! In reading order:
//! * [`gateway`] is the one task: it connects, reads, writes and reports, and never waits for an inference. [`dial`] has how
//!   a box connects and takes its leave, [`pulse`] whether the broker is still there.
//! * [`desk`] turns messages into calls and calls into answers, and settles each delivery. [`subscriptions`] is what it asks
//!   the broker for, [`held`] counts the bytes under way.
//! * [`topics`] says what a topic asks; [`request`] reads a call out of a message, [`answer`] writes the answer as one.
//! * [`bindings`] are the messages of devices that know nothing of Ledge, [`bound`] is one such message on its way, [`push`]
//!   has pushes that must wait, [`fields`] finds values in its JSON, [`rate`] keeps the newest of too many.
//! * `trial` does all this with one message and without a broker; `check` asks the broker what it grants.
//! * [`client`] is MQTT itself: packets, the session, the connection.
//! * [`config`] is the section `[mqtt]`; [`fuzz`] has what must hold whatever comes.
#![forbid(unsafe_code)]

pub mod answer;
pub mod bindings;
pub mod bound;
mod caller;
pub mod check;
pub mod client;
pub mod config;
pub mod desk;
pub mod dial;
pub mod fields;
pub mod fuzz;
pub mod gateway;
pub mod held;
pub mod pulse;
pub mod push;
pub mod rate;
pub mod request;
pub mod subscriptions;
pub mod topics;
pub mod trial;
