//! gRPC: the Open Inference Protocol's `inference.GRPCInferenceService` with Triton's extensions,
//! `grpc.health.v1.Health` and reflection, over HTTP/2. Off unless `[grpc] listen` has an address.
//!
//! Files, in reading order:
//! * `config.rs` - `[grpc]`
//! * `part.rs` - `ROUTES`, the table of methods, and gRPC as a part of the daemon
//! * `connection.rs`, `streams.rs` - connections with HTTP/2 under limits, and the streams of one
//! * `message_reader.rs` - messages of a request, under the limits of bodies
//! * `methods.rs` - the state of every method, and its caller
//! * `call.rs` - the frame of every method: its request, its deadline, its response, its trailers
//! * `infer.rs` - `ModelInfer` and `ModelStreamInfer`; `request.rs` reads their requests, `response.rs` writes answers
//! * `models.rs` - metadata, config, statistics and the model repository
//! * `health.rs`, `reflection.rs` - liveness, readiness and gRPC's health checks; reflection
//! * `proto/`, `messages.rs` - the messages; `build.rs`, the build script, makes Rust types of `proto/`
//!
//! A method is a route: `http/guard.rs` finds its caller and checks the permission, as for every other route, and an
//! error is an `ApiError`, which `part/grpc.rs` writes as a status.
//!
//! Invariants:
//! * Memory is reserved for bytes that have arrived, never for a length that a caller announced.
//! * A message of many parts is measured before it is decoded, so that a small message never becomes a large one
//!   unseen.
//! * Only calls keep a connection busy. A stream without a call in progress gives way to newcomers.
//!
//! # Where it is decided
//!
//! * The memory that a message takes: `MessageSize` in `request.rs`
//! * The deadline of a call: `CallHead::read` in `call.rs`, from `grpc-timeout`; `infer.rs` takes the earlier of
//!   it and the request's own
//! * The time that an idle connection may stay open: `http.header_timeout_ms`, applied in `connection.rs`
#![forbid(unsafe_code)]

mod call;
pub mod config;
mod connection;
mod health;
mod infer;
mod message_reader;
mod messages;
mod methods;
mod models;
pub mod part;
mod reflection;
mod request;
mod response;
mod streams;

pub use connection::service;
#[cfg(any(test, feature = "fuzzing"))]
pub use request::fuzz_request;

/// The name of the service of gRPC's listeners.
pub const SERVICE: &str = "grpc";
