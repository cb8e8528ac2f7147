//! Feast's feature server: its JSON to requests of the feature store, and the store's answers to its JSON, so that
//! Feast's own client works.
//!
//! The forms are those of Feast 0.67 as its code has them (`feature_server.py`, `infra/online_stores/remote.py`). An
//! error that Feast's client knows becomes the same exception there.
//!
//! Files, in reading order:
//! * `request.rs` - requests: reads of online features, pushes, writes
//! * `frame.rs` - data frames in JSON: columns of cells, read without a tree in between, and bounded
//! * `reply.rs` - answers to `/get-online-features`, written from the store's columns
//! * `error.rs` - errors as Feast's feature server sends them
//! * `describe.rs` - the declared feature views, feature services and entities
//! * `tests.rs` - tests
//!
//! Invariants:
//! * It knows no transport and decides nothing about permissions: bytes come in, bytes go out.
//! * Every answer is bounded (`ANSWER_CELLS_MAX`), and so is the memory of every frame.

pub mod describe;
mod error;
mod frame;
mod reply;
mod request;
#[cfg(test)]
mod tests;

pub use error::{FeastError, MistakeLocation, RequestMistake};
pub use reply::{LongFeaturesAnswer, LongFeaturesAnswerPieces, encode_online_features};
pub use request::{OnlineFeaturesCall, decode_online_features, decode_push, decode_write};

/// The most cells, features times entities, of one answer.
pub const ANSWER_CELLS_MAX: usize = 1_000_000;
