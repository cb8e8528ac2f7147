//! Lists of names in which `["*"]` stands for all names, future ones included. An empty list stands for no name.

use std::fmt::Display;
use std::str::FromStr;

use ledge_base::toml_check::from_text;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// The element that stands for all names. It is not a valid name.
const ALL_NAMES: &str = "*";

/// Reads a list; `None` is all names.
///
/// # Errors
/// A malformed name, or a list that has `*` next to other elements.
pub fn read<'de, D, T>(deserializer: D) -> Result<Option<Vec<T>>, D::Error>
where
    D: Deserializer<'de>,
    T: FromStr,
    T::Err: Display,
{
    let listed = Vec::<NameOrAll<T>>::deserialize(deserializer)?;
    let elements = listed.len();
    let names: Vec<_> = listed.into_iter().filter_map(|element| element.0).collect();
    if names.len() == elements {
        Ok(Some(names))
    } else if elements == 1 {
        Ok(None)
    } else {
        Err(serde::de::Error::custom(format!(
            "{ALL_NAMES:?} stands for all names: it must be the only element, or left out"
        )))
    }
}

/// Writes a list; `None` is all names.
pub fn write<S: Serializer, T: Serialize>(names: Option<&[T]>, serializer: S) -> Result<S::Ok, S::Error> {
    match names {
        Some(names) => names.serialize(serializer),
        None => [ALL_NAMES].serialize(serializer),
    }
}

/// One element, deserialized by itself so that a mistake is reported at its position.
struct NameOrAll<T>(Option<T>);

impl<T: FromStr> FromStr for NameOrAll<T> {
    type Err = T::Err;

    fn from_str(text: &str) -> Result<Self, T::Err> {
        if text == ALL_NAMES { Ok(Self(None)) } else { text.parse().map(|name| Self(Some(name))) }
    }
}

impl<'de, T> Deserialize<'de> for NameOrAll<T>
where
    T: FromStr,
    T::Err: Display,
{
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        from_text(deserializer)
    }
}
