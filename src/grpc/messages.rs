//! The messages of `proto/`, made at the build.

#![expect(clippy::pedantic, clippy::enum_variant_names, reason = "generated")]

include!(concat!(env!("OUT_DIR"), "/inference.rs"));

/// The messages of gRPC's health checks.
pub mod health {
    include!(concat!(env!("OUT_DIR"), "/grpc.health.v1.rs"));
}

/// The descriptors of all messages and services, for reflection: a `google.protobuf.FileDescriptorSet`.
pub const DESCRIPTORS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/descriptors.bin"));
