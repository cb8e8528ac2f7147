//! Feast's feature server: its JSON <-> the feature store's questions and answers, so that Feast's own client works.
//!
//! The forms are those of Feast 0.67 as its code has them (`feature_server.py`, `infra/online_stores/remote.py`). Errors
//! are its too: what its client knows becomes the same exception over there.

pub mod describe;
mod error;
mod frame;
mod reply;
mod request;
#[cfg(test)]
mod tests;

pub use error::{Detail, FeastError, Location};
pub use reply::{LongAnswer, Pieces, encode_online_features};
pub use request::{OnlineFeaturesCall, PushCall, PushMode, decode_online_features, decode_push, decode_write};

/// The most cells, features times entities, of one answer.
pub const MOST_CELLS: usize = 1_000_000;
