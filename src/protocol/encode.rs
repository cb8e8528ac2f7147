//! Encoding of an inference response to bytes.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::io::{self, Write};

use bytes::Bytes;
use half::{bf16, f16};
use ledge_base::memory_budget::{MemoryAccount, MemoryBudgetExhausted, MemoryReservation};
use ledge_base::names::ModelName;
use ledge_base::tensor::{DataType, Tensor};
use ledge_models::serving::request::InferResponse;
use schemars::{JsonSchema, Schema, schema_for};
use serde::Serialize;

use super::decode::ReplyFormat;
use super::error::{ProtocolError, excerpt};
use super::used_features::{UsedFeatureCells, UsedFeatures};

/// An answer ready to be sent.
#[derive(Debug)]
pub struct EncodedResponse {
    /// For the header `Inference-Header-Content-Length`: the length of the JSON in bytes. `Some` when any output is
    /// binary; the content type is then `application/octet-stream`.
    pub header_length: Option<usize>,
    /// The body in pieces: the JSON, then each binary output. The bytes of outputs are shared, not copied.
    pub chunks: Vec<Bytes>,
    /// Memory of the outputs and of the JSON.
    memory: MemoryReservation,
}

impl EncodedResponse {
    /// The length of the body, in bytes.
    pub fn content_length(&self) -> usize {
        self.chunks.iter().map(Bytes::len).sum()
    }

    /// The body in one piece, copied unless it is one already. It counts until its last clone is dropped.
    pub fn into_bytes(self) -> Result<Bytes, MemoryBudgetExhausted> {
        let length = self.content_length();
        let Self { chunks, mut memory, .. } = self;
        let body = match <[Bytes; 1]>::try_from(chunks) {
            Ok([json]) => json,
            Err(chunks) => {
                // The pieces are there besides their copy.
                let binary = chunks.iter().skip(1).map(Bytes::len).sum::<usize>();
                memory.cover(binary + length)?;
                chunks.concat().into()
            }
        };
        memory.resize(length)?;
        Ok(memory.attach(body))
    }
}

/// Encodes the answer to an inference call. The memory of the answer stays reserved for its bytes.
pub fn encode_counted(
    mut response: InferResponse,
    id: Option<&str>,
    format: &ReplyFormat,
) -> Result<EncodedResponse, ProtocolError> {
    let memory = std::mem::replace(&mut response.memory, MemoryAccount::unlimited().hold());
    encode_within(&response, id, format, memory)
}

/// Encodes the answer to an inference call without a limit of memory.
pub fn encode_response(
    response: &InferResponse,
    id: Option<&str>,
    format: &ReplyFormat,
) -> Result<EncodedResponse, ProtocolError> {
    encode_within(response, id, format, MemoryAccount::unlimited().hold())
}

/// Writes key order and flat, row-major data as Triton does. `memory` grows by the JSON.
fn encode_within(
    response: &InferResponse,
    id: Option<&str>,
    format: &ReplyFormat,
    mut memory: MemoryReservation,
) -> Result<EncodedResponse, ProtocolError> {
    let mut binary = Vec::new();
    let mut outputs = Vec::with_capacity(response.outputs.len());
    // Names and shapes are short; numbers take about three times their bytes.
    let mut estimate = 256;
    for (name, tensor) in &response.outputs {
        let (parameters, data) = if format.is_binary(name) {
            binary.push(tensor.data().clone());
            (Some(BinaryParameters { binary_data_size: tensor.data().len() }), None)
        } else {
            estimate += tensor.data().len().saturating_mul(3);
            (None, Some(JsonData::of(name, tensor)?))
        };
        estimate += 128;
        outputs.push(OutputDocument { name, datatype: tensor.datatype(), shape: tensor.shape(), parameters, data });
    }

    estimate += response.features.iter().map(|used| 128 + used.cells.len() * 80).sum::<usize>();
    let body = InferResponseBody {
        id,
        model_name: &response.model,
        model_version: response.version.to_string(),
        outputs,
        features: (!response.features.is_empty()).then_some(UsedFeatures(&response.features)),
    };

    let beside = memory.bytes();
    // Without memory for the estimate, the actual text may still fit.
    let mut json = Vec::new();
    let _ = json.try_reserve_exact(estimate);
    let mut counted = CountedJson { json, covered: 0, beside, memory: &mut memory };
    serde_json::to_writer(&mut counted, &body).map_err(|error| {
        // The writer fails for nothing else.
        if error.is_io() { MemoryBudgetExhausted.into() } else { ProtocolError::Encode { reason: error.to_string() } }
    })?;

    let json = counted.json;
    let header_length = (!binary.is_empty()).then_some(json.len());
    let mut chunks = Vec::with_capacity(1 + binary.len());
    chunks.push(Bytes::from(json));
    chunks.append(&mut binary);
    Ok(EncodedResponse { header_length, chunks, memory })
}

/// A JSON buffer that is counted against the memory budget as it grows.
struct CountedJson<'h> {
    json: Vec<u8>,
    /// Length up to which it is already counted.
    covered: usize,
    /// Bytes that it has besides the JSON.
    beside: usize,
    memory: &'h mut MemoryReservation,
}

impl Write for CountedJson<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.write_all(bytes).map(|()| bytes.len())
    }

    fn write_all(&mut self, bytes: &[u8]) -> io::Result<()> {
        let length = self.json.len() + bytes.len();
        if length > self.covered {
            self.memory.cover(self.beside + length).map_err(io::Error::other)?;
            self.covered = self.memory.bytes() - self.beside;
        }
        self.json.try_reserve(bytes.len())?;
        self.json.extend_from_slice(bytes);
        Ok(())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The form of an answer in JSON, as JSON Schema.
pub fn schema() -> Schema {
    schema_for!(InferResponseBody<'static>)
}

#[derive(Serialize, JsonSchema)]
struct InferResponseBody<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<&'a str>,
    model_name: &'a ModelName,
    model_version: String,
    outputs: Vec<OutputDocument<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<BTreeMap<String, UsedFeatureCells<'static>>>")]
    features: Option<UsedFeatures<'a>>,
}

#[derive(Serialize, JsonSchema)]
#[schemars(rename = "Output")]
struct OutputDocument<'a> {
    name: &'a str,
    #[schemars(with = "String")]
    datatype: DataType,
    shape: &'a [usize],
    #[serde(skip_serializing_if = "Option::is_none")]
    parameters: Option<BinaryParameters>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<Vec<serde_json::Value>>")]
    data: Option<JsonData<'a>>,
}

#[derive(Serialize, JsonSchema)]
struct BinaryParameters {
    binary_data_size: usize,
}

/// The elements of a tensor, borrowed where their alignment allows. FP16 and BF16 are widened to FP32, which is exact.
#[derive(Serialize)]
#[serde(untagged)]
enum JsonData<'a> {
    Bool(&'a [bool]),
    Uint8(Cow<'a, [u8]>),
    Uint16(Cow<'a, [u16]>),
    Uint32(Cow<'a, [u32]>),
    Uint64(Cow<'a, [u64]>),
    Int8(Cow<'a, [i8]>),
    Int16(Cow<'a, [i16]>),
    Int32(Cow<'a, [i32]>),
    Int64(Cow<'a, [i64]>),
    Fp32(Cow<'a, [f32]>),
    Fp64(Cow<'a, [f64]>),
    Text(Vec<&'a str>),
}

impl<'a> JsonData<'a> {
    fn of(name: &str, tensor: &'a Tensor) -> Result<Self, ProtocolError> {
        // serde_json would write `null` for a number that is not finite, so these are refused first.
        let not_finite = || ProtocolError::NotFinite { output: excerpt(name) };
        let data = match tensor.datatype() {
            DataType::Bool => tensor.bools().map(Self::Bool),
            DataType::Uint8 => tensor.elements().map(Self::Uint8),
            DataType::Uint16 => tensor.elements().map(Self::Uint16),
            DataType::Uint32 => tensor.elements().map(Self::Uint32),
            DataType::Uint64 => tensor.elements().map(Self::Uint64),
            DataType::Int8 => tensor.elements().map(Self::Int8),
            DataType::Int16 => tensor.elements().map(Self::Int16),
            DataType::Int32 => tensor.elements().map(Self::Int32),
            DataType::Int64 => tensor.elements().map(Self::Int64),
            DataType::Fp16 => {
                tensor.elements().map(|halves| Self::Fp32(halves.iter().copied().map(f16::to_f32).collect()))
            }
            DataType::Bf16 => {
                tensor.elements().map(|halves| Self::Fp32(halves.iter().copied().map(bf16::to_f32).collect()))
            }
            DataType::Fp32 => tensor.elements().map(Self::Fp32),
            DataType::Fp64 => tensor.elements().map(Self::Fp64),
            DataType::Bytes => {
                let texts: Result<Vec<_>, _> =
                    tensor.strings().into_iter().flatten().map(std::str::from_utf8).collect();
                Some(Self::Text(texts.map_err(|_| ProtocolError::NotUtf8 { output: excerpt(name) })?))
            }
        };
        match data {
            Some(Self::Fp32(floats)) if !floats.iter().all(|float| float.is_finite()) => Err(not_finite()),
            Some(Self::Fp64(floats)) if !floats.iter().all(|float| float.is_finite()) => Err(not_finite()),
            Some(data) => Ok(data),
            None => Err(ProtocolError::Encode { reason: format!("output '{}' has no elements", excerpt(name)) }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fuzz::response;

    fn encode(tensor: Tensor, id: Option<&str>, format: &ReplyFormat) -> Result<EncodedResponse, ProtocolError> {
        encode_response(&response(vec![("OUT".into(), tensor)]), id, format)
    }

    #[test]
    fn keys_are_in_tritons_order_and_data_is_flat() {
        let tensor = Tensor::from_vec(vec![2, 1], vec![1.0_f32, 0.1]).unwrap();
        let encoded = encode(tensor, Some("a\"b"), &ReplyFormat::JSON).unwrap();
        assert_eq!(encoded.header_length, None);
        let expected = r#"{"id":"a\"b","model_name":"m","model_version":"1","outputs":[{"name":"OUT","datatype":"FP32","shape":[2,1],"data":[1.0,0.1]}]}"#;
        assert_eq!(encoded.into_bytes().unwrap(), expected);
    }

    #[test]
    fn binary_data_follows_the_json_uncopied() {
        let tensor = Tensor::from_vec(vec![2], vec![f32::NAN, 1.0]).unwrap();
        let bytes = tensor.data().clone();
        let encoded = encode(tensor, None, &ReplyFormat::BINARY).unwrap();
        let expected = r#"{"model_name":"m","model_version":"1","outputs":[{"name":"OUT","datatype":"FP32","shape":[2],"parameters":{"binary_data_size":8}}]}"#;
        assert_eq!((encoded.header_length, &encoded.chunks[0][..]), (Some(expected.len()), expected.as_bytes()));
        assert_eq!(encoded.chunks[1].as_ptr(), bytes.as_ptr());
        assert_eq!(encoded.content_length(), expected.len() + 8);
        assert_eq!(encoded.into_bytes().unwrap().slice(expected.len()..), bytes);
    }

    #[test]
    fn what_json_cannot_carry_is_refused_with_the_way_out() {
        let cases = [
            Tensor::from_vec(vec![1], vec![f32::INFINITY]),
            Tensor::from_vec(vec![1], vec![f64::NAN]),
            Tensor::from_vec(vec![1], vec![f16::NEG_INFINITY]),
            Tensor::from_vec(vec![1], vec![bf16::NAN]),
            Tensor::from_strings(vec![1], [b"\xff"]),
        ];
        for tensor in cases {
            let error = encode(tensor.unwrap(), None, &ReplyFormat::JSON).unwrap_err();
            assert_eq!(error.status(), 400);
            let message = error.to_string();
            assert!(message.contains("'OUT'") && message.contains("'binary_data': true"), "{message}");
        }
    }
}
