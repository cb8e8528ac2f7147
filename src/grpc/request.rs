//! Requests of inference: measured, decoded and checked.

use std::collections::HashMap;
use std::time::Instant;

use bytes::{Buf as _, BufMut as _, Bytes, BytesMut};
use ledge_base::memory_budget::{MemoryAccount, MemoryReservation};
use ledge_base::tensor::DataType;
use ledge_part::api_error::{ApiError, StatusCode};
use ledge_protocol::call::INLINE_JSON_BYTES_MAX;
use ledge_protocol::typed::{NamedValues, TypedInput, TypedRequest};
use ledge_protocol::{DecodedRequest, ModelTarget, ParameterValue};
use ledge_service::off_thread::off_thread;
use prost::DecodeError;
use prost::encoding::{DecodeContext, WireType, decode_key, decode_varint, skip_field};

use super::call::decoded;
use super::messages::infer_parameter::ParameterChoice;
use super::messages::model_infer_request::InferInputTensor;
use super::messages::{InferParameter, InferTensorContents, ModelInferRequest};

/// The most memory that a byte of a message takes once it is decoded: of a dimension of a shape, and of an empty
/// element of a tensor.
const HEAD_GROWTH: usize = 8;
const CONTENTS_GROWTH: usize = 16;

/// The most memory that a parameter, a requested output or the handle of a raw tensor takes, besides its bytes.
const ENTRY_BYTES: usize = 128;

/// An input takes as much as three of these.
const ENTRIES_OF_INPUT: usize = 3;

/// The parameter of an input that has its data in shared memory.
const SHARED_MEMORY_PARAMETER: &str = "shared_memory_region";

/// The parameter by which a client of Triton asks for a mark on the last answer to a call.
const FINAL_RESPONSE_PARAMETER: &str = "triton_enable_empty_final_response";

/// A decoded request, with the memory that it takes besides its message.
pub struct DecodedInferCall {
    pub target: ModelTarget,
    pub request: DecodedRequest,
    /// Set when the answer carries a mark that it is the last one.
    pub marks_final: bool,
    _memory: MemoryReservation,
}

impl DecodedInferCall {
    /// Decodes a message, which may be large: off the async threads then. "timeout" counts from `arrived`.
    pub async fn decode(message: Bytes, arrived: Instant, account: &MemoryAccount) -> Result<Self, ApiError> {
        let size = MessageSize::of(&message).map_err(|error| undecodable(&error))?;
        let memory = account.take(size.memory())?;
        let decode = move || Self::decode_measured(message, arrived, memory);
        let is_small = size.head + size.contents <= INLINE_JSON_BYTES_MAX;
        if is_small { decode() } else { off_thread(account, decode).await }
    }

    fn decode_measured(message: Bytes, arrived: Instant, memory: MemoryReservation) -> Result<Self, ApiError> {
        let ModelInferRequest { model_name, model_version, id, parameters, inputs, outputs, raw_input_contents } =
            decoded(message)?;
        let version = Some(model_version.as_str()).filter(|version| !version.is_empty());
        let target = ModelTarget::parse(&model_name, version)?;
        let inputs = with_data(inputs, raw_input_contents)?;
        let marks_final = parameters
            .get(FINAL_RESPONSE_PARAMETER)
            .is_some_and(|parameter| matches!(parameter.parameter_choice, Some(ParameterChoice::BoolParam(true))));
        let request = TypedRequest {
            id: Some(id).filter(|id| !id.is_empty()),
            parameters: named_values(parameters),
            inputs,
            outputs: outputs.into_iter().map(|output| (output.name, named_values(output.parameters))).collect(),
        };
        let request = request.decode(&target.model, arrived)?;
        Ok(Self { target, request, marks_final, _memory: memory })
    }
}

fn undecodable(error: &DecodeError) -> ApiError {
    ApiError::new(StatusCode::BAD_REQUEST, format!("the message cannot be decoded: {error}"))
}

/// The parts of a message besides the bytes of its raw tensors, which are shared and not copied.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct MessageSize {
    /// The bytes of names, shapes and parameters.
    head: usize,
    /// The bytes of tensor elements in separate fields.
    contents: usize,
    /// The values of which there may be many, each of [`ENTRY_BYTES`].
    entries: usize,
}

impl MessageSize {
    fn of(mut message: &[u8]) -> Result<Self, DecodeError> {
        let mut size = Self::default();
        while let Some(RequestField { tag, bytes, length }) = RequestField::next(&mut message, &[4])? {
            match tag {
                // inputs
                5 => {
                    size.entries += ENTRIES_OF_INPUT;
                    size.head += length;
                    let mut input = bytes;
                    while let Some(RequestField { tag, bytes, .. }) = RequestField::next(&mut input, &[4])? {
                        if tag == 5 {
                            size.head -= bytes.len();
                            size.contents += bytes.len();
                        }
                        size.entries += 1;
                    }
                }
                // raw_input_contents
                7 => size.entries += 1,
                // outputs
                6 => {
                    size.head += length;
                    let mut output = bytes;
                    while RequestField::next(&mut output, &[2])?.is_some() {
                        size.entries += 1;
                    }
                    size.entries += 1;
                }
                _ => {
                    size.head += length;
                    size.entries += 1;
                }
            }
        }
        Ok(size)
    }

    /// The most memory that the decoded message takes.
    fn memory(self) -> usize {
        let Self { head, contents, entries } = self;
        HEAD_GROWTH * head + CONTENTS_GROWTH * contents + ENTRY_BYTES * entries
    }
}

/// A field of a message.
struct RequestField<'m> {
    tag: u32,
    /// Its content, if it has a length.
    bytes: &'m [u8],
    /// Its length with its key.
    length: usize,
}

impl<'m> RequestField<'m> {
    /// Takes the next field from a message; `None` at the end. Maps are in the fields `maps`.
    fn next(message: &mut &'m [u8], maps: &[u32]) -> Result<Option<Self>, DecodeError> {
        if message.is_empty() {
            return Ok(None);
        }
        let before = message.len();
        let (tag, wire_type) = decode_key(message)?;
        let bytes = match wire_type {
            WireType::LengthDelimited => {
                let length = usize::try_from(decode_varint(message)?).unwrap_or(usize::MAX);
                let bytes = message.get(..length).ok_or_else(|| invalid("a field is longer than its message"))?;
                message.advance(length);
                bytes
            }
            // The protocol has no groups. prost decodes a map without checking its wire type, so a map with another
            // wire type is refused here: its size could not be measured.
            WireType::StartGroup | WireType::EndGroup => return Err(invalid("a field is a group")),
            _ if maps.contains(&tag) => return Err(invalid("a map has no length")),
            _ => {
                skip_field(wire_type, tag, message, DecodeContext::default())?;
                &[]
            }
        };
        Ok(Some(Self { tag, bytes, length: before - message.len() }))
    }
}

fn invalid(reason: &'static str) -> DecodeError {
    #[expect(deprecated, reason = "prost has no other constructor")]
    DecodeError::new(reason)
}

/// The inputs with the data of each. An input in shared memory has none, and is refused afterwards.
fn with_data(inputs: Vec<InferInputTensor>, raw: Vec<Bytes>) -> Result<Vec<TypedInput>, ApiError> {
    let refused = |message: String| ApiError::new(StatusCode::BAD_REQUEST, message);
    let is_here = |input: &&InferInputTensor| !input.parameters.contains_key(SHARED_MEMORY_PARAMETER);
    let (tensors, expected) = (raw.len(), inputs.iter().filter(is_here).count());
    if tensors > 0 && tensors != expected {
        return Err(refused(format!(
            "expected one of raw_input_contents for each of {expected} inputs, got {tensors}"
        )));
    }
    let mut raw = raw.into_iter();
    let mut typed = Vec::with_capacity(inputs.len());
    for input in inputs {
        let raw = is_here(&&input).then(|| raw.next()).flatten();
        let InferInputTensor { name, datatype, shape, parameters, contents } = input;
        let data = match (raw, contents) {
            (Some(_), Some(_)) => {
                return Err(refused("a request has contents or raw_input_contents, not both".to_owned()));
            }
            (None, Some(contents)) => Some(bytes_of(&datatype, contents)?),
            (raw, None) => raw,
        };
        typed.push(TypedInput { name, datatype, shape, parameters: named_values(parameters), data });
    }
    Ok(typed)
}

/// The elements of a tensor as bytes. An unknown datatype has none, and is refused afterwards.
fn bytes_of(datatype: &str, contents: InferTensorContents) -> Result<Bytes, ApiError> {
    let refused = |message: String| ApiError::new(StatusCode::BAD_REQUEST, message);
    let Some(datatype) = DataType::from_name(datatype) else { return Ok(Bytes::new()) };
    let out_of_range = |value: &dyn std::fmt::Display| refused(format!("{value} is no {datatype}"));
    let narrow = |values: Vec<i32>, size: usize| {
        let (least, most) = (-1_i64 << (8 * size - 1), (1_i64 << (8 * size - 1)) - 1);
        let mut bytes = BytesMut::with_capacity(values.len() * size);
        for value in values {
            if !(least..=most).contains(&i64::from(value)) {
                return Err(out_of_range(&value));
            }
            bytes.put_int_le(value.into(), size);
        }
        Ok(bytes.freeze())
    };
    let narrow_unsigned = |values: Vec<u32>, size: usize| {
        let most = (1_u64 << (8 * size)) - 1;
        let mut bytes = BytesMut::with_capacity(values.len() * size);
        for value in values {
            if u64::from(value) > most {
                return Err(out_of_range(&value));
            }
            bytes.put_uint_le(value.into(), size);
        }
        Ok(bytes.freeze())
    };
    match datatype {
        DataType::Bool => Ok(contents.bool_contents.into_iter().map(u8::from).collect()),
        DataType::Int8 => narrow(contents.int_contents, 1),
        DataType::Int16 => narrow(contents.int_contents, 2),
        DataType::Int32 => Ok(contents.int_contents.into_iter().flat_map(i32::to_le_bytes).collect()),
        DataType::Int64 => Ok(contents.int64_contents.into_iter().flat_map(i64::to_le_bytes).collect()),
        DataType::Uint8 => narrow_unsigned(contents.uint_contents, 1),
        DataType::Uint16 => narrow_unsigned(contents.uint_contents, 2),
        DataType::Uint32 => Ok(contents.uint_contents.into_iter().flat_map(u32::to_le_bytes).collect()),
        DataType::Uint64 => Ok(contents.uint64_contents.into_iter().flat_map(u64::to_le_bytes).collect()),
        DataType::Fp32 => Ok(contents.fp32_contents.into_iter().flat_map(f32::to_le_bytes).collect()),
        DataType::Fp64 => Ok(contents.fp64_contents.into_iter().flat_map(f64::to_le_bytes).collect()),
        DataType::Fp16 | DataType::Bf16 => {
            Err(refused(format!("elements of {datatype} have no field in contents: send them in raw_input_contents")))
        }
        DataType::Bytes => {
            let length = contents.bytes_contents.iter().map(|element| 4 + element.len()).sum();
            let mut bytes = BytesMut::with_capacity(length);
            for element in contents.bytes_contents {
                let length = u32::try_from(element.len()).map_err(|_| refused("an element is too long".into()))?;
                bytes.put_u32_le(length);
                bytes.put(element);
            }
            Ok(bytes.freeze())
        }
    }
}

fn named_values(parameters: HashMap<String, InferParameter>) -> NamedValues {
    let value = |parameter: InferParameter| {
        Some(match parameter.parameter_choice? {
            ParameterChoice::BoolParam(value) => ParameterValue::Bool(value),
            ParameterChoice::Int64Param(value) => {
                u64::try_from(value).map_or(ParameterValue::OtherNumber, ParameterValue::Unsigned)
            }
            ParameterChoice::Uint64Param(value) => ParameterValue::Unsigned(value),
            ParameterChoice::DoubleParam(_) => ParameterValue::OtherNumber,
            ParameterChoice::StringParam(value) => ParameterValue::Text(value),
        })
    };
    parameters.into_iter().filter_map(|(name, parameter)| Some((name, value(parameter)?))).collect()
}

/// Decodes any bytes as a request of inference, for the fuzzers; true for a request. The folder `fuzz/` and
/// `tests/it/fuzz.rs` feed it.
///
/// # Panics
/// When an invariant does not hold.
#[cfg(any(test, feature = "fuzzing"))]
pub fn fuzz_request(data: &[u8]) -> bool {
    use ledge_models::serving::request::CallInputs;

    let message = Bytes::copy_from_slice(data);
    let Ok(size) = MessageSize::of(&message) else { return false };
    assert!(size.head + size.contents <= data.len() && size.entries <= 4 * data.len(), "{size:?}");
    let call = DecodedInferCall::decode_measured(message, Instant::now(), MemoryAccount::unlimited().hold());
    let Ok(call) = call else { return false };
    let CallInputs::Named(inputs) = call.request.tensors.inputs else { panic!("inputs without names") };
    for (_, tensor) in inputs {
        let shape = tensor.shape().to_vec();
        let again = ledge_base::tensor::Tensor::new(tensor.datatype(), shape, tensor.data().clone());
        assert!(again.is_ok(), "{again:?}");
    }
    true
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use prost::Message as _;

    use super::super::messages::model_infer_request::InferRequestedOutputTensor;
    use super::*;

    fn input(datatype: &str, shape: &[i64], contents: Option<InferTensorContents>) -> InferInputTensor {
        let (name, datatype) = ("x".to_owned(), datatype.to_owned());
        InferInputTensor { name, datatype, shape: shape.to_vec(), contents, ..InferInputTensor::default() }
    }

    fn decode(request: &ModelInferRequest) -> Result<DecodedInferCall, ApiError> {
        let request = ModelInferRequest { model_name: "m".to_owned(), ..request.clone() };
        DecodedInferCall::decode_measured(
            request.encode_to_vec().into(),
            Instant::now(),
            MemoryAccount::unlimited().hold(),
        )
    }

    fn data(call: &DecodedInferCall) -> Vec<u8> {
        let ledge_models::serving::request::CallInputs::Named(inputs) = &call.request.tensors.inputs else {
            return vec![];
        };
        inputs.iter().flat_map(|(_, tensor)| tensor.data().to_vec()).collect()
    }

    #[test]
    fn contents_and_raw_contents_make_the_same_tensor() {
        let of_contents = |datatype: &str, contents| {
            let shape = [2];
            decode(&ModelInferRequest { inputs: vec![input(datatype, &shape, Some(contents))], ..Default::default() })
                .map(|call| data(&call))
                .map_err(|error| error.message)
        };
        let none = InferTensorContents::default;
        let ints = |values: &[i32]| InferTensorContents { int_contents: values.to_vec(), ..none() };
        let unsigned = |values: &[u32]| InferTensorContents { uint_contents: values.to_vec(), ..none() };
        assert_eq!(of_contents("INT8", ints(&[-128, 127])), Ok(vec![0x80, 0x7f]));
        assert_eq!(of_contents("INT16", ints(&[-2, 258])), Ok(vec![0xfe, 0xff, 2, 1]));
        assert_eq!(of_contents("UINT8", unsigned(&[0, 255])), Ok(vec![0, 255]));
        assert_eq!(of_contents("UINT16", unsigned(&[1, 65_535])), Ok(vec![1, 0, 255, 255]));
        for (datatype, contents) in [("INT8", ints(&[0, 128])), ("INT16", ints(&[0, -32_769]))] {
            assert!(of_contents(datatype, contents).unwrap_err().contains(datatype));
        }
        assert!(of_contents("UINT8", unsigned(&[0, 256])).unwrap_err().contains("UINT8"));
        assert!(of_contents("FP16", none()).unwrap_err().contains("raw_input_contents"));
        assert!(of_contents("INT8", ints(&[1])).unwrap_err().contains("Expected 2, got 1"));
        let texts = InferTensorContents { bytes_contents: vec!["a".into(), "".into()], ..none() };
        assert_eq!(of_contents("BYTES", texts), Ok(vec![1, 0, 0, 0, b'a', 0, 0, 0, 0]));
    }

    #[test]
    fn raw_contents_belong_to_all_inputs_or_none() {
        let with = |raw: usize, contents: Option<InferTensorContents>| {
            let raw_input_contents = vec![Bytes::from_static(&[7]); raw];
            let inputs = vec![input("UINT8", &[1], contents)];
            decode(&ModelInferRequest { inputs, raw_input_contents, ..Default::default() })
                .map(|call| data(&call))
                .map_err(|error| error.message)
        };
        assert_eq!(with(1, None), Ok(vec![7]));
        assert!(with(2, None).unwrap_err().contains("for each of 1 inputs, got 2"));
        assert!(with(1, Some(InferTensorContents::default())).unwrap_err().contains("not both"));
        assert!(with(0, None).is_err());
    }

    #[test]
    fn small_messages_that_decode_to_large_ones_are_counted() {
        let many = ModelInferRequest { inputs: vec![InferInputTensor::default(); 40_000], ..Default::default() };
        let message = many.encode_to_vec();
        assert_eq!(message.len(), 80_000);
        let size = MessageSize::of(&message).unwrap();
        assert!(size.memory() >= many.inputs.len() * size_of::<InferInputTensor>());
        let raw = ModelInferRequest { raw_input_contents: vec![Bytes::new(); 40_000], ..Default::default() };
        assert!(MessageSize::of(&raw.encode_to_vec()).unwrap().memory() >= 40_000 * size_of::<Bytes>());
        let outputs = vec![InferRequestedOutputTensor::default(); 40_000];
        let outputs = ModelInferRequest { outputs, ..Default::default() };
        let size = MessageSize::of(&outputs.encode_to_vec()).unwrap();
        assert!(size.memory() >= 40_000 * size_of::<InferRequestedOutputTensor>());
        let contents = InferTensorContents { bytes_contents: vec![Bytes::new(); 40_000], ..Default::default() };
        let one = ModelInferRequest { inputs: vec![input("BYTES", &[40_000], Some(contents))], ..Default::default() };
        let size = MessageSize::of(&one.encode_to_vec()).unwrap();
        assert_eq!(size.contents, 80_000);
        assert!(size.memory() >= 40_000 * size_of::<Bytes>());
        let raw = ModelInferRequest { raw_input_contents: vec![vec![0; 1 << 20].into()], ..Default::default() };
        assert_eq!(MessageSize::of(&raw.encode_to_vec()).unwrap().memory(), ENTRY_BYTES);
    }

    #[test]
    fn parameters_have_the_meaning_that_they_have_in_json() {
        let parameter = |choice| InferParameter { parameter_choice: Some(choice) };
        let with = |name: &str, choice| {
            let parameters = HashMap::from([(name.to_owned(), parameter(choice))]);
            decode(&ModelInferRequest { parameters, ..Default::default() })
        };
        assert!(with("timeout", ParameterChoice::Int64Param(5_000_000)).unwrap().request.deadline.is_some());
        assert!(with("priority", ParameterChoice::Uint64Param(2)).unwrap().request.priority.is_some());
        assert!(with("sequence_id", ParameterChoice::Int64Param(7)).is_err());
        assert!(with("timeout", ParameterChoice::StringParam("1".into())).is_err());
        assert!(with("anything", ParameterChoice::DoubleParam(0.5)).is_ok());
        let classes = HashMap::from([("classification".to_owned(), parameter(ParameterChoice::Int64Param(3)))]);
        let outputs = vec![InferRequestedOutputTensor { name: "y".into(), parameters: classes }];
        let call = decode(&ModelInferRequest { outputs, ..Default::default() }).unwrap();
        assert_eq!(call.request.tensors.outputs.unwrap()[0].classification, Some(3));
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_request_or_an_error(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            fuzz_request(&bytes);
        }
    }
}
