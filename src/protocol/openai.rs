//! OpenAI's form of embeddings and of lists of models, which much software calls: bytes to requests, answers to bytes.
//!
//! The form is that of OpenAI's API reference ("Create embeddings", "List models"); its Python client asks for base64
//! and decodes it by itself.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use ledge_base::names::ModelName;
use ledge_base::serde_messages::in_json;
use ledge_base::tensor::Tensor;
use ledge_engine::pipeline::content::{TEXTS_MAX, TextError, Texts};
use ledge_engine::pipeline::text_embedding::{Embedding, Embeddings};
use ledge_part::api_error::{ApiError, StatusCode};
use serde::de::{Error, IgnoredAny, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};

use super::call::content_error;
use super::error::excerpt;

/// The message for token ids. LangChain's `OpenAIEmbeddings` sends them by default.
const TOKEN_IDS: &str = "token ids are not accepted, because they belong to another model's tokenizer: send texts. With \
                         LangChain, create OpenAIEmbeddings(..., check_embedding_ctx_length=False)";

/// A request for embeddings.
#[derive(Debug, Clone, PartialEq)]
pub struct EmbeddingsRequest {
    pub model: ModelName,
    /// The name by which the caller asked for the model: its own, or an alias.
    pub asked: String,
    pub texts: Texts,
    pub encoding: EmbeddingEncoding,
    /// The length of the vectors that the caller expects.
    pub dimensions: Option<usize>,
}

/// The form of a vector.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum EmbeddingEncoding {
    /// An array of numbers.
    #[default]
    Float,
    /// The numbers as little-endian 32-bit floats, in base64.
    Base64,
}

#[derive(Deserialize)]
struct EmbeddingsRequestBody<'a> {
    #[serde(borrow)]
    model: Cow<'a, str>,
    #[serde(borrow)]
    input: EmbeddingInput<'a>,
    #[serde(default)]
    encoding_format: Option<EmbeddingEncoding>,
    #[serde(default)]
    dimensions: Option<usize>,
}

/// The texts of a request, as many as may be sent, and the number of them.
struct EmbeddingInput<'a> {
    texts: Vec<Cow<'a, str>>,
    count: usize,
}

/// A text, and never a token id.
struct InputText<'a>(Cow<'a, str>);

impl<'de: 'a, 'a> Deserialize<'de> for EmbeddingInput<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct TextsVisitor;

        impl<'de> Visitor<'de> for TextsVisitor {
            type Value = EmbeddingInput<'de>;

            fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
                f.write_str("a string or an array of strings")
            }

            fn visit_borrowed_str<E: Error>(self, text: &'de str) -> Result<Self::Value, E> {
                Ok(EmbeddingInput { texts: vec![text.into()], count: 1 })
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<Self::Value, E> {
                Ok(EmbeddingInput { texts: vec![text.to_owned().into()], count: 1 })
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Self::Value, A::Error> {
                let mut input = EmbeddingInput { texts: Vec::new(), count: 0 };
                while input.count < TEXTS_MAX {
                    let Some(InputText(text)) = list.next_element()? else { return Ok(input) };
                    input.texts.push(text);
                    input.count += 1;
                }
                while list.next_element::<IgnoredAny>()?.is_some() {
                    input.count += 1;
                }
                Ok(input)
            }
        }

        deserializer.deserialize_any(TextsVisitor)
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for InputText<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct OneTextVisitor;

        impl<'de> Visitor<'de> for OneTextVisitor {
            type Value = InputText<'de>;

            fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
                f.write_str("a string")
            }

            fn visit_borrowed_str<E: Error>(self, text: &'de str) -> Result<Self::Value, E> {
                Ok(InputText(text.into()))
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<Self::Value, E> {
                Ok(InputText(text.to_owned().into()))
            }

            fn visit_u64<E: Error>(self, _: u64) -> Result<Self::Value, E> {
                Err(E::custom(TOKEN_IDS))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, _: A) -> Result<Self::Value, A::Error> {
                Err(A::Error::custom(TOKEN_IDS))
            }
        }

        deserializer.deserialize_any(OneTextVisitor)
    }
}

impl EmbeddingsRequest {
    /// Reads the body of a request. Keys without an effect on the answer, such as `user`, are ignored. A name in `aliases`
    /// asks for the model there, whatever else has that name.
    pub fn decode(body: &[u8], aliases: &BTreeMap<String, ModelName>) -> Result<Self, ApiError> {
        let bad = |message: String| ApiError::new(StatusCode::BAD_REQUEST, message);
        // serde would also take an array in place of the object.
        if !body.trim_ascii_start().starts_with(b"{") {
            return Err(bad("the body is not a JSON object with \"model\" and \"input\"".to_owned()));
        }
        let EmbeddingsRequestBody { model, input, encoding_format, dimensions } =
            serde_json::from_slice(body).map_err(|error| bad(excerpt(&in_json(&error.to_string()))))?;
        let EmbeddingInput { texts, count } = input;
        if count > texts.len() {
            return Err(content_error(TextError::TooMany { count }));
        }
        let found = aliases.get(&*model).cloned().map_or_else(|| model.parse(), Ok);
        let (asked, model) = (model.into_owned(), found.map_err(|error| bad(format!("\"model\": {error}")))?);
        let texts = Texts::new(texts.iter().map(|text| text.as_ref().as_bytes()));
        let texts = texts.map_err(content_error)?;
        Ok(Self { model, asked, texts, encoding: encoding_format.unwrap_or_default(), dimensions })
    }

    /// The answer of a model with these results.
    pub fn answer(&self, results: &[&Tensor]) -> Result<Vec<u8>, ApiError> {
        let internal = |reason: String| ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, reason);
        let embeddings = Embeddings::of(results).map_err(|error| internal(error.to_string()))?;
        let has = embeddings.dimensions();
        if let Some(wanted) = self.dimensions.filter(|wanted| *wanted != has) {
            let message = format!(
                "\"dimensions\" is {wanted}, and the vectors of '{}' have {has} numbers, which cannot be cut: leave it out",
                self.model
            );
            return Err(ApiError::new(StatusCode::BAD_REQUEST, message));
        }

        let prompt_tokens = embeddings.rows().map(|row| row.tokens).sum();
        let row = |(index, Embedding { embedding, truncated, .. })| {
            let embedding = match self.encoding {
                EmbeddingEncoding::Float => EncodedEmbedding::Float(embedding),
                EmbeddingEncoding::Base64 => {
                    let bytes: Vec<u8> = embedding.iter().flat_map(|value: &f32| value.to_le_bytes()).collect();
                    EncodedEmbedding::Base64(BASE64_STANDARD.encode(bytes))
                }
            };
            EmbeddingRow { object: "embedding", index, embedding, truncated }
        };
        let usage = Usage { prompt_tokens, total_tokens: prompt_tokens };
        let data = embeddings.rows().enumerate().map(row).collect();
        let answer = EmbeddingList { object: "list", data, model: &self.asked, usage };
        serde_json::to_vec(&answer).map_err(|error| internal(error.to_string()))
    }
}

#[derive(Serialize)]
struct EmbeddingList<'a> {
    object: &'static str,
    data: Vec<EmbeddingRow<'a>>,
    model: &'a str,
    usage: Usage,
}

#[derive(Serialize)]
struct EmbeddingRow<'a> {
    object: &'static str,
    index: usize,
    embedding: EncodedEmbedding<'a>,
    /// Ledge's own: the text had more tokens than the model takes.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    truncated: bool,
}

#[derive(Serialize)]
#[serde(untagged)]
enum EncodedEmbedding<'a> {
    Float(&'a [f32]),
    Base64(String),
}

#[derive(Serialize)]
struct Usage {
    prompt_tokens: i64,
    total_tokens: i64,
}

/// One model of a list.
#[derive(Debug, Serialize)]
pub struct ListedModel<'a> {
    id: &'a str,
    object: &'static str,
    /// When it was made, which is not known.
    created: u64,
    owned_by: &'static str,
}

impl<'a> ListedModel<'a> {
    pub fn new(id: &'a str) -> Self {
        Self { id, object: "model", created: 0, owned_by: "ledge" }
    }
}

/// `{"object": "list", "data": [...]}`.
#[derive(Debug, Serialize)]
pub struct ModelList<'a> {
    object: &'static str,
    data: Vec<ListedModel<'a>>,
}

impl<'a> ModelList<'a> {
    pub fn new(models: impl Iterator<Item = &'a str>) -> Self {
        Self { object: "list", data: models.map(ListedModel::new).collect() }
    }
}

/// `{"error": {"message", "type", "param", "code"}}`: every error.
#[derive(Debug, Serialize)]
pub struct OpenAiErrorBody<'a> {
    error: ErrorDetail<'a>,
}

#[derive(Debug, Serialize)]
struct ErrorDetail<'a> {
    message: &'a str,
    r#type: &'static str,
    param: Option<&'static str>,
    code: Option<&'static str>,
}

impl<'a> OpenAiErrorBody<'a> {
    pub fn new(status: StatusCode, message: &'a str) -> Self {
        let (r#type, code) = match status.as_u16() {
            401 => ("invalid_request_error", Some("invalid_api_key")),
            404 => ("invalid_request_error", Some("model_not_found")),
            429 => ("rate_limit_error", Some("rate_limit_exceeded")),
            500.. => ("server_error", None),
            _ => ("invalid_request_error", None),
        };
        Self { error: ErrorDetail { message, r#type, param: None, code } }
    }

    pub fn to_json(&self) -> Vec<u8> {
        serde_json::to_vec(self).unwrap_or_else(|_| br#"{"error":{"message":"internal error"}}"#.to_vec())
    }
}

/// Reads any bytes as a request for embeddings, for the fuzzers; true for a request.
///
/// # Panics
/// When an invariant does not hold.
#[cfg(any(test, feature = "fuzzing"))]
pub fn fuzz_embeddings(data: &[u8]) -> bool {
    match EmbeddingsRequest::decode(data, &BTreeMap::new()) {
        Ok(request) => {
            let texts = request.texts.iter().map(str::len).sum::<usize>();
            assert!(texts <= data.len() && (1..=TEXTS_MAX).contains(&request.texts.count()));
            true
        }
        Err(error) => {
            assert!(matches!(error.status.as_u16(), 400 | 413), "{error:?}");
            assert!(error.message.len() < 2048, "{error:?}");
            false
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::*;

    fn decode(body: &Value) -> Result<EmbeddingsRequest, ApiError> {
        EmbeddingsRequest::decode(body.to_string().as_bytes(), &BTreeMap::new())
    }

    fn answer(body: &Value) -> Result<Value, ApiError> {
        let vectors = Tensor::from_vec(vec![2, 2], vec![0.5_f32, -1.0, 0.0, 2.0]).unwrap();
        let tokens = Tensor::from_vec(vec![2], vec![3_i64, 8]).unwrap();
        let truncated = Tensor::from_vec(vec![2], vec![false, true]).unwrap();
        let json = decode(body).unwrap().answer(&[&vectors, &tokens, &truncated])?;
        Ok(serde_json::from_slice(&json).unwrap())
    }

    #[test]
    fn a_request_has_one_text_or_a_list() {
        let one = decode(&json!({"model": "m", "input": "a \"b\"", "user": "x", "extra": [1]})).unwrap();
        assert_eq!((one.texts.iter().collect::<Vec<_>>(), one.encoding), (vec!["a \"b\""], EmbeddingEncoding::Float));
        let list = json!({"model": "m", "input": ["a", ""], "encoding_format": "base64", "dimensions": null});
        let list = decode(&list).unwrap();
        assert_eq!((list.texts.iter().collect::<Vec<_>>(), list.encoding), (vec!["a", ""], EmbeddingEncoding::Base64));
    }

    #[test]
    fn an_alias_asks_for_its_model_and_the_answer_has_the_name_that_was_asked_for() {
        let aliases = BTreeMap::from([("BAAI/bge:small".to_owned(), "m".parse().unwrap())]);
        let decode = |model: &str| {
            EmbeddingsRequest::decode(json!({"model": model, "input": "a"}).to_string().as_bytes(), &aliases)
        };
        let request = decode("BAAI/bge:small").unwrap();
        assert_eq!((request.model.as_str(), request.asked.as_str()), ("m", "BAAI/bge:small"));
        assert_eq!(decode("n").unwrap().model.as_str(), "n");
        assert_eq!(decode("BAAI/bge").unwrap_err().status, StatusCode::BAD_REQUEST);
    }

    #[test]
    fn token_ids_are_refused_with_what_langchain_users_set() {
        for ids in [json!([1, 2]), json!([[1, 2], [3]])] {
            let error = decode(&json!({"model": "m", "input": ids})).unwrap_err();
            assert!(error.message.contains("check_embedding_ctx_length=False"), "{error:?}");
        }
    }

    #[test]
    fn what_is_no_request_is_refused() {
        for (body, status) in [
            (json!(["m", "a"]), 400),
            (json!({"model": "m"}), 400),
            (json!({"model": "m", "input": []}), 400),
            (json!({"model": "m", "input": 7}), 400),
            (json!({"model": "a/b", "input": "a"}), 400),
            (json!({"model": "m", "input": "a", "encoding_format": "int8"}), 400),
            (json!({"model": "m", "input": vec!["a"; TEXTS_MAX + 1]}), 413),
            (json!({"model": "m", "input": "a".repeat(10 << 20)}), 413),
        ] {
            assert_eq!(decode(&body).unwrap_err().status.as_u16(), status);
        }
    }

    #[test]
    fn the_answer_has_vectors_in_the_form_that_was_asked_for() {
        let body = |form| json!({"model": "m", "input": ["a", "b"], "encoding_format": form, "dimensions": 2});
        let rows = |first: Value, second: Value| {
            json!({
                "object": "list", "model": "m", "usage": {"prompt_tokens": 11, "total_tokens": 11},
                "data": [
                    {"object": "embedding", "index": 0, "embedding": first},
                    {"object": "embedding", "index": 1, "embedding": second, "truncated": true},
                ],
            })
        };
        assert_eq!(answer(&body("float")), Ok(rows(json!([0.5, -1.0]), json!([0.0, 2.0]))));
        assert_eq!(answer(&body("base64")), Ok(rows(json!("AAAAPwAAgL8="), json!("AAAAAAAAAEA="))));
        let error = answer(&json!({"model": "m", "input": ["a", "b"], "dimensions": 3})).unwrap_err();
        assert!(error.status == 400 && error.message.contains("have 2 numbers"), "{error:?}");
    }

    #[test]
    fn an_error_has_the_form_that_the_client_reads() {
        let body = |status: u16| {
            let body = OpenAiErrorBody::new(StatusCode::from_u16(status).unwrap(), "no").to_json();
            serde_json::from_slice::<Value>(&body).unwrap()
        };
        let detail =
            json!({"message": "no", "type": "invalid_request_error", "param": null, "code": "model_not_found"});
        assert_eq!(body(404), json!({"error": detail}));
        assert_eq!(body(503)["error"]["type"], "server_error");
    }

    proptest! {
        #[test]
        fn no_bytes_panic(data: Vec<u8>) {
            fuzz_embeddings(&data);
        }

        #[test]
        fn texts_arrive_as_they_were_sent(texts in prop::collection::vec(".{0,9}", 1..9)) {
            let request = decode(&json!({"input": texts, "model": "m"})).unwrap();
            prop_assert_eq!(request.texts.iter().collect::<Vec<_>>(), texts);
        }
    }
}
