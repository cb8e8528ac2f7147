//! Answers to calls of inference.

use std::collections::HashMap;

use bytes::Bytes;
use ledge_base::memory_budget::{MemoryAccount, MemoryReservation};
use ledge_models::serving::request::{CacheOutcome, InferResponse};
use ledge_part::api_error::ApiError;
use prost::Message as _;

use super::call::framed;
use super::messages::infer_parameter::ParameterChoice;
use super::messages::model_infer_response::InferOutputTensor;
use super::messages::{InferParameter, ModelInferResponse, ModelStreamInferResponse};

/// The parameter that marks the last answer to a call, for clients of Triton that ask for it.
const FINAL_RESPONSE_PARAMETER: &str = "triton_final_response";

/// An answer, with the memory that it takes until it is sent.
pub struct ReservedAnswer {
    pub message: Bytes,
    pub memory: MemoryReservation,
    pub cache: Option<CacheOutcome>,
}

/// The form of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GrpcAnswerForm {
    Unary,
    /// One of several on a stream. With a mark that it is the last one for its call, if the caller asked for it.
    OfStream {
        marks_final: bool,
    },
}

impl ReservedAnswer {
    /// Writes the answer to a call. Outputs are raw, as Triton sends them.
    pub fn write(mut response: InferResponse, id: Option<String>, form: GrpcAnswerForm) -> Result<Self, ApiError> {
        let mut memory = std::mem::replace(&mut response.memory, MemoryAccount::unlimited().hold());
        let InferResponse { model, version, outputs, cache, .. } = response;
        let mut message = ModelInferResponse {
            model_name: model.to_string(),
            model_version: version.to_string(),
            id: id.unwrap_or_default(),
            ..ModelInferResponse::default()
        };
        for (name, tensor) in outputs {
            message.outputs.push(InferOutputTensor {
                name,
                datatype: tensor.datatype().as_str().to_owned(),
                shape: tensor.shape().iter().map(|dim| i64::try_from(*dim).unwrap_or(i64::MAX)).collect(),
                ..InferOutputTensor::default()
            });
            message.raw_output_contents.push(tensor.data().clone());
        }

        // The outputs stay in memory next to the message until it is written.
        let outputs: usize = message.raw_output_contents.iter().map(Bytes::len).sum();
        memory.cover(outputs + message.encoded_len())?;
        let message = match form {
            GrpcAnswerForm::Unary => framed(&message),
            GrpcAnswerForm::OfStream { marks_final } => {
                if marks_final {
                    let is_final = InferParameter { parameter_choice: Some(ParameterChoice::BoolParam(true)) };
                    message.parameters = HashMap::from([(FINAL_RESPONSE_PARAMETER.to_owned(), is_final)]);
                }
                framed(&ModelStreamInferResponse { error_message: String::new(), infer_response: Some(message) })
            }
        };
        memory.resize(message.len())?;
        Ok(Self { message, memory, cache })
    }
}

/// The error of one call on a stream, which goes on.
pub fn stream_error(error: &ApiError, id: Option<String>) -> Bytes {
    let infer_response = Some(ModelInferResponse { id: id.unwrap_or_default(), ..ModelInferResponse::default() });
    framed(&ModelStreamInferResponse { error_message: error.message.clone(), infer_response })
}
