//! Inputs that are made of features, in `model.toml`: the features, and the policies where one has no value.

use std::fmt;
use std::str::FromStr;

use ledge_base::toml_check::from_text;
use ledge_features::online::FieldStatus;
use ledge_features::value::Value;
use serde::de::value::MapAccessDeserializer;
use serde::de::{MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A feature by its name: `VIEW:FEATURE`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct FeatureReference {
    text: Box<str>,
    colon: usize,
}

/// Error for a text that is not a feature reference.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not a feature reference: expected VIEW:FEATURE")]
pub struct InvalidReference {
    text: String,
}

impl FeatureReference {
    /// As it is written.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// The feature view.
    pub fn view(&self) -> &str {
        self.text.get(..self.colon).unwrap_or_default()
    }

    /// The feature in it.
    pub fn feature(&self) -> &str {
        self.text.get(self.colon + 1..).unwrap_or_default()
    }
}

impl fmt::Display for FeatureReference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl FromStr for FeatureReference {
    type Err = InvalidReference;

    fn from_str(text: &str) -> Result<Self, InvalidReference> {
        let invalid = || InvalidReference { text: text.chars().take(128).collect() };
        let (view, feature) = text.split_once(':').ok_or_else(invalid)?;
        let is_name = |name: &str| !name.is_empty() && !name.contains(|c: char| c == ':' || c.is_control());
        if is_name(view) && is_name(feature) {
            Ok(Self { text: text.into(), colon: view.len() })
        } else {
            Err(invalid())
        }
    }
}

impl Serialize for FeatureReference {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.text)
    }
}

impl<'de> Deserialize<'de> for FeatureReference {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        from_text(deserializer)
    }
}

/// Policy for a feature without a value: `"refuse"`, `"nan"` or `{ default = VALUE }`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum FeaturePolicy {
    /// The call is refused.
    #[default]
    Refuse,
    /// The input gets NaN; only for floating-point inputs.
    Nan,
    Default(DefaultValue),
}

/// A value in a `model.toml`; a list for a feature that is one.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(untagged, expecting = "expected a number, a text, true or false, or a list of one kind of them")]
#[expect(missing_docs, reason = "each holds what its name says")]
pub enum DefaultValue {
    Bool(bool),
    Integer(i64),
    #[serde(deserialize_with = "finite")]
    Number(f64),
    Text(Box<str>),
    Bools(Vec<bool>),
    Integers(Vec<i64>),
    #[serde(deserialize_with = "all_finite")]
    Numbers(Vec<f64>),
    Texts(Vec<Box<str>>),
}

fn finite<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f64, D::Error> {
    let number = f64::deserialize(deserializer)?;
    if number.is_finite() { Ok(number) } else { Err(serde::de::Error::custom("expected a finite number")) }
}

fn all_finite<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<f64>, D::Error> {
    let numbers = Vec::<f64>::deserialize(deserializer)?;
    let finite = numbers.iter().all(|number| number.is_finite());
    if finite { Ok(numbers) } else { Err(serde::de::Error::custom("expected a finite number")) }
}

impl DefaultValue {
    /// The value in the form of a feature.
    pub fn to_value(&self) -> Value {
        match self {
            Self::Bool(value) => Value::Bool(*value),
            Self::Integer(value) => Value::Int64(*value),
            Self::Number(value) => Value::Float64(*value),
            Self::Text(value) => Value::String(value.clone()),
            Self::Bools(values) => Value::BoolList(values.clone()),
            Self::Integers(values) => Value::Int64List(values.clone()),
            Self::Numbers(values) => Value::Float64List(values.clone()),
            Self::Texts(values) => Value::StringList(values.clone()),
        }
    }
}

/// Policy for each status of a feature that comes without a value; `None` is the model's policy, and in the model's own
/// table `refuse`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct FeaturePolicies {
    /// There is no row of the entity.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub not_found: Option<FeaturePolicy>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub null_value: Option<FeaturePolicy>,
    /// The row is older than the view's ttl.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub outside_max_age: Option<FeaturePolicy>,
}

impl FeaturePolicies {
    fn of(&self, status: FieldStatus) -> Option<&FeaturePolicy> {
        match status {
            FieldStatus::Present => None,
            FieldStatus::NullValue => self.null_value.as_ref(),
            FieldStatus::NotFound => self.not_found.as_ref(),
            FieldStatus::OutsideMaxAge => self.outside_max_age.as_ref(),
        }
    }

    /// True when no policy is set.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// A feature in the row of an input: only its reference, or a table with its own policies.
#[derive(Debug, Clone, PartialEq)]
pub struct InputFeature {
    pub feature: FeatureReference,
    /// Policies that differ from those of the model.
    pub policies: FeaturePolicies,
}

impl InputFeature {
    /// The policy for a status that comes without a value.
    pub fn policy<'p>(&'p self, of_model: &'p FeaturePolicies, status: FieldStatus) -> &'p FeaturePolicy {
        self.policies.of(status).or_else(|| of_model.of(status)).unwrap_or(&FeaturePolicy::Refuse)
    }

    /// Every policy that may be applied, by its status.
    pub fn all_policies<'p>(
        &'p self,
        of_model: &'p FeaturePolicies,
    ) -> impl Iterator<Item = (FieldStatus, &'p FeaturePolicy)> {
        let lacking = FieldStatus::ALL.into_iter().filter(|status| *status != FieldStatus::Present);
        lacking.map(|status| (status, self.policy(of_model, status)))
    }
}

/// [`InputFeature`] as a table.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct InputFeatureTable<R> {
    feature: R,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    not_found: Option<FeaturePolicy>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    null_value: Option<FeaturePolicy>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    outside_max_age: Option<FeaturePolicy>,
}

impl Serialize for InputFeature {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if self.policies.is_empty() {
            return self.feature.serialize(serializer);
        }
        let FeaturePolicies { not_found, null_value, outside_max_age } = self.policies.clone();
        InputFeatureTable { feature: &self.feature, not_found, null_value, outside_max_age }.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for InputFeature {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct EitherForm;

        impl<'de> Visitor<'de> for EitherForm {
            type Value = InputFeature;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("VIEW:FEATURE, or a table with `feature`")
            }

            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<InputFeature, E> {
                let feature = text.parse().map_err(E::custom)?;
                Ok(InputFeature { feature, policies: FeaturePolicies::default() })
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<InputFeature, A::Error> {
                let table = InputFeatureTable::deserialize(MapAccessDeserializer::new(map))?;
                let InputFeatureTable { feature, not_found, null_value, outside_max_age } = table;
                let policies = FeaturePolicies { not_found, null_value, outside_max_age };
                Ok(InputFeature { feature, policies })
            }
        }

        deserializer.deserialize_any(EitherForm)
    }
}
