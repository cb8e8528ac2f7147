//! Listeners: sockets that are bound early, served late and drained in order, for every protocol over TCP or a Unix
//! socket. A protocol is a [`ConnectionService`]: it gets connections whose caller is known, and counts its calls.
//!
//! Files, in reading order:
//! * `address.rs` - the address of a listener, and the networks that it serves
//! * `endpoint.rs` - a listener: its address, the name of its service, and the networks that it serves
//! * `listeners.rs` - binds the sockets and accepts connections
//! * `connection.rs` - one connection, and the reasons to end it
//! * `handover.rs` - sockets that stay open while the program restarts
//! * `connection_calls.rs`, `connection_limiter.rs` - the calls of a connection, the limit on connections, and the idle
//!   one that is closed for a new caller
//! * `write_timeout.rs` - the timeout for a caller that does not read its answer
//! * `tls/` - TLS as a server:
//!   * `mod.rs` - the certificate of this box, renewed while it serves, and those of callers
//!   * `config.rs`, `files.rs` - `[http.tls]`, and its files ready to serve with
//!   * `accept.rs` - connections of callers: admission, then the handshake
//!   * `handshake.rs`, `network_limiter.rs` - handshakes under limits, and the connections of one network
//!   * `names.rs`, `self_signed.rs` - names and addresses of this box, and a certificate made for them
//!   * `certificate.rs` - all code that reads X.509
//!   * `metrics.rs` - the metrics of TLS
//! * `part.rs`, `doctor.rs` - TLS as a part of the daemon, and its findings for `ledge doctor`
//!
//! Invariants:
//! * Only this crate binds a socket of the network.
//! * A connection that is idle is closed for a newcomer at the limit; one with a call never is.
//! * Only `tls/certificate.rs` reads X.509.
//! * The crate knows no protocol above TLS.
//!
//! # Where it is decided
//!
//! * The connection that is closed for a newcomer: `connection_limiter.rs`
//! * The callers of one network that are refused: `tls/network_limiter.rs`
//! * The time that a caller has to read its answer: `write_timeout.rs`
#![forbid(unsafe_code)]

pub mod address;
mod connection;
mod connection_calls;
mod connection_limiter;
pub mod doctor;
mod endpoint;
mod handover;
mod listeners;
mod part;
pub mod tls;
mod write_timeout;

pub use connection::{Connection, end_requested};
pub use connection_calls::{CallGuard, ConnectionCalls, ResponseBody};
pub use endpoint::ListenerEndpoint;
pub use handover::{Handover, LISTENERS_VARIABLE};
pub use listeners::{BindError, ConnectionLimits, ConnectionService, Listeners};
pub use tls::ServerTls;
pub use write_timeout::{WriteTimeout, slow_read_time};
