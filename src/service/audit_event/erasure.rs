//! The statement of an erasure: what was erased, for the certificate that the person concerned gets.
//!
//! The audit record of the erasure has the SHA-256 of the statement, so the signed head of the log vouches for every
//! byte of it. The log itself learns nothing: the statement names the entity by a hash with a random salt, and the salt
//! is in the statement only.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use sha2::{Digest as _, Sha256};

/// The form of a statement.
pub const STATEMENT_FORM: &str = "ledge.erasure/1";

/// The number of random bytes that are hashed with the entity.
pub const SALT_BYTES: usize = 32;

/// The join keys of an entity, by name.
pub type ErasedEntity = BTreeMap<String, Value>;

/// The ways in which a statement names its entity.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EntityNaming {
    /// By the salted hash only. Whoever knows the entity can check it.
    Hashed,
    /// By its join keys, too.
    Named,
}

/// The statement of an erasure.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ErasureStatement {
    /// [`STATEMENT_FORM`].
    form: String,
    /// Random bytes, in hexadecimal.
    salt: String,
    /// SHA-256 of the salt and the entity as compact JSON with sorted keys, in hexadecimal.
    entity_sha256: String,
    /// The entity, where the certificate was to name it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    entity: Option<ErasedEntity>,
    /// The number of erased records.
    pub records: u64,
    /// The feature views that they were in, in the order of their names.
    pub feature_views: Vec<ErasedView>,
}

/// The erased records of one feature view.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ErasedView {
    pub name: String,
    /// The number of records.
    pub records: u64,
    /// The earliest event time of a record, in RFC 3339.
    pub earliest: String,
    /// The latest event time of a record, in RFC 3339.
    pub latest: String,
}

/// A text that is not a statement.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("not a statement of an erasure: {reason}")]
pub struct InvalidStatement {
    reason: String,
}

impl ErasureStatement {
    /// The statement of an erasure of `feature_views`. The salt is random, and used once.
    pub fn new(
        entity: ErasedEntity,
        naming: EntityNaming,
        salt: [u8; SALT_BYTES],
        feature_views: Vec<ErasedView>,
    ) -> Self {
        Self {
            form: STATEMENT_FORM.to_owned(),
            salt: hex::encode(salt),
            entity_sha256: entity_hash(&salt, &entity),
            entity: Some(entity).filter(|_| naming == EntityNaming::Named),
            records: feature_views.iter().map(|view| view.records).sum(),
            feature_views,
        }
    }

    /// The text of the statement: one line of JSON.
    pub fn to_text(&self) -> String {
        // Fails only for a map with keys other than strings, and there is none.
        serde_json::to_string(self).unwrap_or_default()
    }

    /// The SHA-256 of a text, in hexadecimal, as the record of the erasure has it.
    pub fn hash_of(text: &str) -> String {
        hex::encode(Sha256::digest(text.as_bytes()))
    }

    /// Reads the output of [`Self::to_text`], and no other text.
    pub fn parse(text: &str) -> Result<Self, InvalidStatement> {
        let invalid = |reason: String| InvalidStatement { reason };
        let statement: Self = serde_json::from_str(text).map_err(|error| invalid(error.to_string()))?;
        if statement.form != STATEMENT_FORM {
            return Err(invalid(format!("its form is not {STATEMENT_FORM}")));
        }
        let mut salt = [0; SALT_BYTES];
        hex::decode_to_slice(&statement.salt, &mut salt).map_err(|error| invalid(format!("its salt: {error}")))?;
        let is_other = |entity: &ErasedEntity| entity_hash(&salt, entity) != statement.entity_sha256;
        if statement.entity.as_ref().is_some_and(is_other) {
            return Err(invalid("its hash is that of another entity".to_owned()));
        }
        if statement.to_text() != text {
            return Err(invalid("it is not in the form in which Ledge writes it".to_owned()));
        }
        Ok(statement)
    }

    /// The entity, where the statement names it.
    pub fn entity(&self) -> Option<&ErasedEntity> {
        self.entity.as_ref()
    }

    /// Returns true if the statement is about this entity.
    pub fn is_about(&self, entity: &ErasedEntity) -> bool {
        hex::decode(&self.salt).is_ok_and(|salt| entity_hash(&salt, entity) == self.entity_sha256)
    }
}

fn entity_hash(salt: &[u8], entity: &ErasedEntity) -> String {
    // Fails only for a map with keys other than strings.
    let text = serde_json::to_vec(entity).unwrap_or_default();
    hex::encode(Sha256::new().chain_update(salt).chain_update(&text).finalize())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn entity(value: Value) -> ErasedEntity {
        [("customer_id".to_owned(), value)].into()
    }

    fn view(records: u64) -> ErasedView {
        ErasedView {
            name: "spend".into(),
            records,
            earliest: "2026-01-01T00:00:00Z".into(),
            latest: "2026-02-01T00:00:00Z".into(),
        }
    }

    #[test]
    fn the_hash_is_that_of_the_salt_and_the_sorted_json() {
        let pair = [("b".to_owned(), json!("x")), ("a".to_owned(), json!(7))].into();
        let statement = ErasureStatement::new(pair, EntityNaming::Hashed, [0; SALT_BYTES], vec![]);
        let expected = Sha256::digest([&[0; SALT_BYTES], br#"{"a":7,"b":"x"}"#.as_slice()].concat());
        assert_eq!(statement.entity_sha256, hex::encode(expected));
        assert_eq!(
            ErasureStatement::hash_of("abc"),
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
        );
    }

    #[test]
    fn a_hashed_statement_does_not_contain_the_entity_and_is_recognized_by_who_knows_it() {
        let secret = || entity(json!("anna@example.com"));
        let hashed = ErasureStatement::new(secret(), EntityNaming::Hashed, [7; SALT_BYTES], vec![view(2)]);
        assert!(!hashed.to_text().contains("anna") && hashed.records == 2);
        assert!(hashed.is_about(&secret()) && !hashed.is_about(&entity(json!("otto@example.com"))));
        let named = ErasureStatement::new(secret(), EntityNaming::Named, [7; SALT_BYTES], vec![view(2)]);
        assert_eq!(named.entity(), Some(&secret()));
    }

    proptest! {
        #[test]
        fn a_statement_is_the_same_after_it_was_written_and_read(
            value in "\\PC{0,20}", salt in prop::array::uniform32(any::<u8>()), named: bool, records in 0..u64::MAX / 4,
        ) {
            let naming = if named { EntityNaming::Named } else { EntityNaming::Hashed };
            let statement = ErasureStatement::new(entity(json!(value)), naming, salt, vec![view(records), view(1)]);
            prop_assert_eq!(ErasureStatement::parse(&statement.to_text()), Ok(statement));
        }

        #[test]
        fn a_changed_byte_changes_the_statement_or_makes_it_invalid(at: prop::sample::Index, bit in 0..7_u8) {
            let entity = entity(json!("anna"));
            let text = ErasureStatement::new(entity, EntityNaming::Named, [9; SALT_BYTES], vec![view(3)]).to_text();
            let mut bytes = text.clone().into_bytes();
            bytes[at.index(text.len())] ^= 1 << bit;
            let Ok(changed) = String::from_utf8(bytes) else { return Ok(()) };
            prop_assert_ne!(ErasureStatement::hash_of(&changed), ErasureStatement::hash_of(&text));
            if let Ok(read) = ErasureStatement::parse(&changed) {
                prop_assert_eq!(read.to_text(), changed);
            }
        }
    }
}
