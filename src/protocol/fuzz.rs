//! Properties that hold for any bytes in place of a request. The folder `fuzz/` and `tests/it/fuzz.rs` feed it.

use std::time::Instant;

use bytes::Bytes;
use ledge_base::memory_budget::MemoryAccount;
use ledge_base::names::ModelVersion;
use ledge_base::tensor::Tensor;
use ledge_engine::backend::Runtime;
use ledge_models::serving::request::{CallInputs, InferResponse, Timings};
use ledge_part::api_error::ErrorBody;

use super::decode::{DecodedRequest, ReplyFormat, decode_request};
use super::encode::encode_response;
use super::error::ProtocolError;
use super::feast;
use super::metadata::{IndexRequest, LoadRequest, UnloadRequest};

/// Named tensors of a request or an answer.
type Tensors = Vec<(String, Tensor)>;

/// The longest message that a refusal may have, in bytes: it quotes excerpts only.
const MESSAGE_BYTES_MAX: usize = 8 * 1024;

/// Reads the whole body as JSON; true when it is a request.
///
/// # Panics
/// When an invariant does not hold.
pub fn fuzz_json(data: &[u8]) -> bool {
    check(Bytes::copy_from_slice(data), None)
}

/// Reads the whole body as JSON for Feast's routes; true when one of them reads it.
///
/// # Panics
/// When an invariant does not hold.
pub fn fuzz_feast(data: &[u8]) -> bool {
    let online = feast::decode_online_features(data).map(|_| ());
    let push = feast::decode_push(data).map(|_| ());
    for error in [online.as_ref().err(), push.as_ref().err()].into_iter().flatten() {
        assert!((400..500).contains(&error.status), "{}", error.message());
        assert!(error.to_json().len() < MESSAGE_BYTES_MAX, "{}", error.message());
    }
    online.is_ok() || push.is_ok()
}

/// Reads the whole body as JSON for the model repository's routes; true when one of them reads it.
///
/// # Panics
/// When an invariant does not hold.
pub fn fuzz_repository_call(data: &[u8]) -> bool {
    let results = [
        IndexRequest::decode(data).map(drop),
        LoadRequest::decode(data).map(|LoadRequest { files, .. }| {
            assert!(files.iter().map(String::len).sum::<usize>() <= data.len());
        }),
        UnloadRequest::decode(data).map(drop),
    ];
    for error in results.iter().filter_map(|result| result.as_ref().err()) {
        assert_eq!(error.status(), 400, "{error:?}");
        assert!(ErrorBody::new(&error.to_string()).to_json().len() < MESSAGE_BYTES_MAX, "{error:?}");
    }
    results.iter().any(Result::is_ok)
}

/// Reads a binary request: the first two bytes choose the header's length, from 0 to one byte too many; the others are
/// the body. True when it is a request.
///
/// # Panics
/// When an invariant does not hold.
pub fn fuzz_binary(data: &[u8]) -> bool {
    let Some((choice, body)) = data.split_first_chunk::<2>() else { return false };
    let length = usize::from(u16::from_le_bytes(*choice)) % (body.len() + 2);
    check(Bytes::copy_from_slice(body), Some(length))
}

fn check(body: Bytes, header_length: Option<usize>) -> bool {
    let DecodedRequest { id, tensors, reply, .. } = match decode(body.clone(), header_length) {
        Ok(decoded) => decoded,
        Err(error) => {
            assert_eq!(error.status(), 400, "{error:?}");
            let message = ErrorBody::new(&error.to_string()).to_json();
            assert!(message.len() < MESSAGE_BYTES_MAX, "{error:?}");
            return false;
        }
    };
    let inputs = match tensors.inputs {
        CallInputs::Raw(raw) => {
            assert_eq!((raw, header_length), (body, Some(0)));
            return true;
        }
        CallInputs::Named(inputs) => inputs,
    };
    for (index, (name, _)) in inputs.iter().enumerate() {
        assert!(!inputs.iter().skip(index + 1).any(|(other, _)| other == name), "{name:?} twice");
    }
    assert_eq!(back(&inputs, &ReplyFormat::BINARY).as_ref(), Ok(&inputs));
    for format in [ReplyFormat::JSON, reply] {
        match back(&inputs, &format) {
            Ok(again) => assert_eq!(again, inputs),
            Err(error) => {
                let cannot_be_json = matches!(error, ProtocolError::NotFinite { .. } | ProtocolError::NotUtf8 { .. });
                assert!(cannot_be_json && header_length.is_some(), "{error:?}");
            }
        }
    }
    let encoded = encode_response(&response(Vec::new()), id.as_deref(), &ReplyFormat::JSON);
    assert!(encoded.is_ok(), "{encoded:?}");
    true
}

fn decode(body: Bytes, header_length: Option<usize>) -> Result<DecodedRequest, ProtocolError> {
    let model = "m".parse().unwrap_or_else(|_| unreachable!("a valid name"));
    decode_request(&model, body, header_length, Instant::now())
}

pub(super) fn response(outputs: Tensors) -> InferResponse {
    InferResponse {
        model: "m".parse().unwrap_or_else(|_| unreachable!("a valid name")),
        version: ModelVersion::try_from(1).unwrap_or_else(|_| unreachable!("a valid version")),
        runtime: Runtime::OnnxRuntime,
        outputs,
        timings: Timings::default(),
        cache: None,
        features: Vec::new(),
        result: None,
        memory: MemoryAccount::unlimited().hold(),
    }
}

/// Writes tensors as the outputs of an answer and reads them as the inputs of a request, which differ by one word.
pub(super) fn back(tensors: &Tensors, format: &ReplyFormat) -> Result<Tensors, ProtocolError> {
    let encoded = encode_response(&response(tensors.clone()), None, format)?;
    let header_length = encoded.header_length;
    let length = encoded.content_length();
    let mut body = encoded.into_bytes()?.to_vec();
    assert_eq!(body.len(), length);
    // A model's name has no quotes, so the first match is the key.
    let (from, to) = (&br#""outputs":"#[..], &br#""inputs":"#[..]);
    let at = body.windows(from.len()).position(|window| window == from).unwrap_or_else(|| unreachable!("a key"));
    body.splice(at..at + from.len(), to.iter().copied());
    match decode(body.into(), header_length.map(|length| length - 1))?.tensors.inputs {
        CallInputs::Named(inputs) => Ok(inputs),
        CallInputs::Raw(_) => unreachable!("the JSON is not empty"),
    }
}
