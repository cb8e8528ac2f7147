//! Reflection, by which tools such as `grpcurl` find methods and messages.

use axum::middleware::map_response;
use axum::response::Response;
use axum::routing::{MethodRouter, post, post_service};
use ledge_part::api_error::{ApiError, StatusCode};
use tonic_reflection::server::{Builder, Error};

use super::messages::DESCRIPTORS;
use super::streams::LongLivedAnswer;

/// The largest request: it has one name. Memory for a message is reserved by the length that a caller announces.
const REQUEST_BYTES_MAX: usize = 4 << 10;

/// `grpc.reflection.v1.ServerReflection`.
pub fn v1<S: Clone + Send + Sync + 'static>() -> MethodRouter<S> {
    method(Builder::build_v1, |service| post_service(service.max_decoding_message_size(REQUEST_BYTES_MAX)))
}

/// `grpc.reflection.v1alpha.ServerReflection`, which older tools ask for.
pub fn v1alpha<S: Clone + Send + Sync + 'static>() -> MethodRouter<S> {
    method(Builder::build_v1alpha, |service| post_service(service.max_decoding_message_size(REQUEST_BYTES_MAX)))
}

fn method<S: Clone + Send + Sync + 'static, T>(
    build: impl FnOnce(Builder<'static>) -> Result<T, Error>,
    route: impl FnOnce(T) -> MethodRouter<S>,
) -> MethodRouter<S> {
    match build(Builder::configure().register_encoded_file_descriptor_set(DESCRIPTORS)) {
        Ok(service) => route(service).layer(map_response(lasting)),
        Err(error) => {
            let failure = ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, error.to_string());
            post(async move || failure)
        }
    }
}

/// A caller may leave the stream open without a time limit.
async fn lasting(mut response: Response) -> Response {
    response.extensions_mut().insert(LongLivedAnswer);
    response
}
