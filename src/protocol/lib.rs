//! The Open Inference Protocol, Feast's feature server in `feast/`, and the interfaces of other services: JSON,
//! binary tensors, photographs and texts to requests, responses to bytes. HTTP, MQTT and the command line share it.
//!
//! Files, in reading order:
//! * `object.rs` - JSON objects and arrays, read entry by entry without a tree in between
//! * `json.rs`, `json/` - the `data` of a tensor in JSON, read into a vector; `nest.rs` checks the nesting
//! * `cells.rs` - columns of cells in JSON, bounded
//! * `parameters.rs` - parameters of a request, of its inputs and of its outputs
//! * `wire.rs` - the JSON of an inference request, in one pass
//! * `wire/` - `input.rs` reads one input, `columns.rs` the columns of entities and features
//! * `decode.rs`, `decode/` - an inference request from its bytes; the folder has tests
//! * `typed.rs` - an inference request whose fields were read already, as gRPC has them
//! * `used_features.rs` - the feature values that an answer reports as used
//! * `encode.rs` - an inference response to bytes
//! * `content.rs` - the answer to a photograph or to texts: the result of the model's pipeline
//! * `metadata/` - documents about servers and models as Triton writes them: `model_config.rs`, `repository.rs`,
//!   `statistics.rs`; `of_box.rs` makes those of this box
//! * `error.rs` - reasons why a message is refused, in the words that the client gets
//! * `rows.rs` - rows in place of a request
//! * `csv_rows.rs` - rows of CSV, part by part
//! * `row_answers.rs` - the answers to them as CSV or lines of JSON
//! * `call.rs` - one inference call, from its bytes to the bytes of its answer
//! * `annotated.rs` - a call that is answered with its photograph, annotated
//! * `document_call.rs` - a document for a caller that waits elsewhere for its answer
//! * `searchable.rs` - a call that is answered with its document, with a text layer
//! * `deepstack.rs`, `deepstack/` - the interface that software for cameras calls
//! * `openai.rs` - OpenAI's form of embeddings, and of lists of models
//! * `document_intelligence.rs`, `document_intelligence/` - Azure's form of document analysis
//! * `feast.rs`, `feast/` - Feast's feature server; `feast.rs` has the map
//! * `fuzz.rs` - properties that hold for any bytes in place of a request
//! * `roundtrip.rs` - property tests: encoded tensors decode to the same tensors
//!
//! Invariants:
//! * It knows no transport: bytes and a few header values come in, bytes go out.
//! * A request that leaves `decode_request` is valid as far as it can be without the model.
//! * JSON is read in bounded memory. Data is flat or nested exactly as its shape.
//!
//! # Where it is decided
//!
//! * JSON is rows, not a request: `rows.rs` (`are_rows`)
//! * The message for a body that is no request: `not_a_request` in `call.rs`
//! * The lines of a part of CSV: `csv_rows.rs`
#![forbid(unsafe_code)]

pub mod annotated;
pub mod call;
pub mod content;
pub mod csv_rows;
pub mod decode;
pub mod deepstack;
pub mod document_call;
pub mod document_intelligence;
pub mod encode;
pub mod error;
pub mod feast;
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzz;
pub mod metadata;
pub mod openai;
pub mod row_answers;
pub mod searchable;
pub mod typed;

mod cells;
mod json;
mod object;
mod parameters;
mod rows;
#[cfg(test)]
mod roundtrip;
mod used_features;
mod wire;

pub use decode::{DecodedRequest, ModelTarget, ReplyFormat, decode_request, parse_header_length};
pub use encode::{EncodedResponse, encode_response};
pub use error::ProtocolError;
pub use parameters::ParameterValue;
