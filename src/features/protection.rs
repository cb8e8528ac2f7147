//! Encryption of rows and records under the keys of their entities, or plain where encryption is off. The layer between
//! the store and its keys.

use std::collections::HashMap;
use std::sync::Arc;

use arc_swap::ArcSwap;

use super::catalog::ViewCatalog;
use super::entity_keys::form::EntityTag;
use super::entity_keys::{EntityKeys, EntityKeysError};
use super::key::IndexKey;
use super::record::{CipherHeader, FeatureRecord, FeatureRow, StoredRecord};
use super::seal::{self, CipherContext};
use super::value::Value;
use super::view::ViewId;
use super::wire::DamagedBytes;

/// The names of a view's join keys.
type JoinKeyNames = Arc<[Arc<str>]>;

/// Encrypts and decrypts, or passes plain bytes through.
#[derive(Debug)]
pub struct RowCipher {
    keys: Option<EntityKeys>,
    views: ArcSwap<HashMap<ViewId, JoinKeyNames>>,
}

/// The body of a row or a record, and its encryption.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecordBody {
    pub seal: CipherHeader,
    /// The bytes.
    pub bytes: bytes::Bytes,
}

impl RecordBody {
    /// A plain body.
    pub fn plain(bytes: bytes::Bytes) -> Self {
        Self { seal: CipherHeader::default(), bytes }
    }
}

impl RowCipher {
    /// Creates the layer with the keys of a store, or without any.
    pub fn new(keys: Option<EntityKeys>, catalog: &ViewCatalog) -> Self {
        let protection = Self { keys, views: ArcSwap::default() };
        protection.learn(catalog);
        protection
    }

    /// Updates the names of the join keys of all views.
    pub fn learn(&self, catalog: &ViewCatalog) {
        let names = catalog.stored_views().map(|view| {
            let names: JoinKeyNames = view.join_keys.iter().map(|(name, _)| name.clone()).collect();
            (view.id, names)
        });
        self.views.store(Arc::new(names.collect()));
    }

    /// The keys; `None` where encryption is off.
    pub fn keys(&self) -> Option<&EntityKeys> {
        self.keys.as_ref()
    }

    /// True when everything is encrypted; plain values are refused then.
    pub fn is_complete(&self) -> bool {
        self.keys.as_ref().is_some_and(EntityKeys::is_complete)
    }

    /// `off`; `pending` while plain values are still to be encrypted; `on`.
    pub fn as_str(&self) -> &'static str {
        match &self.keys {
            None => "off",
            Some(keys) if keys.is_complete() => "on",
            Some(_) => "pending",
        }
    }

    /// Writes new keys to the disk.
    pub fn persist(&self) -> Result<(), EntityKeysError> {
        self.keys.as_ref().map_or(Ok(()), EntityKeys::persist)
    }

    /// The tag of an entity of a view.
    fn tag(&self, keys: &EntityKeys, view: ViewId, entity: &[Value]) -> EntityTag {
        let views = self.views.load();
        if let Some(names) = views.get(&view).filter(|names| names.len() == entity.len()) {
            return keys.tag(names.iter().map(|name| &**name).zip(entity));
        }
        // Entities of an unknown view get separate keys, too.
        let names: Vec<String> = (0..entity.len()).map(|at| format!("{}/{at}", view.0)).collect();
        keys.tag(names.iter().map(String::as_str).zip(entity))
    }

    /// The numbers of the keys of an entity of a view.
    pub fn keys_of(&self, view: ViewId, entity: &[Value]) -> Vec<u32> {
        self.keys.as_ref().map(|keys| keys.key_ids(&self.tag(keys, view, entity))).unwrap_or_default()
    }

    /// Encrypts a body for its context.
    pub fn seal(
        &self,
        context: &CipherContext<'_>,
        entity: &[Value],
        plain: bytes::Bytes,
    ) -> Result<RecordBody, EntityKeysError> {
        let Some(keys) = &self.keys else { return Ok(RecordBody::plain(plain)) };
        let (id, key) = keys.find_or_make(&self.tag(keys, context.key.view(), entity))?;
        let sealed = seal::seal(&key, context, &plain).map_err(|_| EntityKeysError::Exhausted)?;
        Ok(RecordBody { seal: CipherHeader::of_entity(id), bytes: sealed.into() })
    }

    /// Decrypts a body.
    pub fn open(&self, context: &CipherContext<'_>, seal: CipherHeader, body: &[u8]) -> Result<Vec<u8>, DamagedBytes> {
        if seal == CipherHeader::default() {
            return if self.is_complete() { Err(DamagedBytes::Plain) } else { Ok(body.to_vec()) };
        }
        let keys = self.keys.as_ref().ok_or(DamagedBytes::KeyMissing)?;
        seal::open(&keys.key(seal.key_id)?, context, body)
    }

    /// Decodes a row of the journal.
    pub fn row(&self, key: &IndexKey, seq: u64, body: &RecordBody) -> Result<FeatureRow, DamagedBytes> {
        if body.seal == CipherHeader::default() {
            return if self.is_complete() { Err(DamagedBytes::Plain) } else { FeatureRow::decode(&body.bytes) };
        }
        FeatureRow::decode(&self.open(&CipherContext { key, seq, windows: false }, body.seal, &body.bytes)?)
    }

    /// Decodes a record of the index or a snapshot.
    pub fn record(&self, key: &IndexKey, bytes: &[u8]) -> Result<FeatureRecord, DamagedBytes> {
        let StoredRecord { header, seal, windows, body } = StoredRecord::verify(key, bytes)?;
        let record = if seal == CipherHeader::default() {
            if self.is_complete() {
                return Err(DamagedBytes::Plain);
            }
            FeatureRecord::of_body(header, body)?
        } else {
            FeatureRecord::of_body(header, &self.open(&CipherContext { key, seq: header.seq, windows }, seal, body)?)?
        };
        // The header is not encrypted.
        if record.row.event_us == header.event_us { Ok(record) } else { Err(DamagedBytes::Forged) }
    }

    /// True for a record of an erased entity.
    pub fn is_erased(&self, key: &IndexKey, bytes: &[u8]) -> bool {
        let Some(keys) = &self.keys else { return false };
        let seal = StoredRecord::verify(key, bytes).map(|stored| stored.seal).unwrap_or_default();
        seal != CipherHeader::default() && keys.key(seal.key_id) == Err(DamagedBytes::Erased)
    }

    /// Encodes a record for index and snapshots.
    pub fn encode(&self, key: &IndexKey, record: &FeatureRecord) -> Result<Vec<u8>, EntityKeysError> {
        if self.keys.is_none() {
            return Ok(record.encode(key));
        }
        let windows = !record.windows.is_empty();
        let context = CipherContext { key, seq: record.seq, windows };
        let body = self.seal(&context, &record.row.entity, record.body().into())?;
        Ok(record.header().with_body(key, body.seal, windows, &body.bytes))
    }

    /// Encrypts an encoded record; `None` when it stays as it is, because it is encrypted already, or encryption is
    /// off.
    pub fn sealed(&self, key: &IndexKey, bytes: &[u8]) -> Result<Option<Vec<u8>>, RowEncryptionError> {
        if self.keys.is_none() || StoredRecord::verify(key, bytes)?.seal != CipherHeader::default() {
            return Ok(None);
        }
        let record = FeatureRecord::decode(key, bytes)?;
        Ok(Some(self.encode(key, &record)?))
    }
}

/// Reasons why a record was not encrypted.
#[derive(Debug, thiserror::Error)]
pub enum RowEncryptionError {
    #[error(transparent)]
    Damaged(#[from] DamagedBytes),
    #[error(transparent)]
    Keys(#[from] EntityKeysError),
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key::HashKey;
    use ledge_identity::sealing::Sealer;

    fn record(entity: i64, seq: u64) -> FeatureRecord {
        let row = FeatureRow { entity: vec![Value::Int64(entity)], event_us: 5, values: Vec::new() };
        FeatureRecord { seq, purge_us: 9, row, windows: Vec::new() }
    }

    fn protection(folder: &tempfile::TempDir) -> RowCipher {
        let keys = EntityKeys::open(folder.path(), Sealer::with_keys(&[[1; 32]])).unwrap().keys;
        RowCipher::new(Some(keys), &ViewCatalog::default())
    }

    #[test]
    fn a_record_that_was_moved_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let protection = protection(&folder);
        let hash_key = HashKey::new([3; 32]);
        let key = |view: u32, entity: i64| hash_key.index_key(ViewId(view), &[Value::Int64(entity)]);

        let mine = protection.encode(&key(1, 1), &record(1, 7)).unwrap();
        let other = protection.encode(&key(1, 2), &record(2, 8)).unwrap();
        assert_eq!(protection.record(&key(1, 1), &mine), Ok(record(1, 7)));

        let parts = |bytes: &[u8], at: IndexKey| {
            let stored = StoredRecord::verify(&at, bytes).unwrap();
            (stored.header, stored.seal, stored.body.to_vec())
        };
        let (header, seal, body) = parts(&mine, key(1, 1));
        let (other_header, other_seal, other_body) = parts(&other, key(1, 2));

        // With correct checksums, as after deliberate tampering.
        for (place, header, seal, body) in [
            (key(1, 2), header, seal, &body),
            (key(2, 1), header, seal, &body),
            (key(1, 1), other_header, seal, &body),
            (key(1, 1), header, other_seal, &body),
            (key(1, 1), header, seal, &other_body),
            (key(1, 1), super::super::record::RecordHeader { event_us: 6, ..header }, seal, &body),
        ] {
            let forged = header.with_body(&place, seal, false, body);
            assert_eq!(protection.record(&place, &forged), Err(DamagedBytes::Forged));
        }

        let with_windows = header.with_body(&key(1, 1), seal, true, &body);
        assert_eq!(protection.record(&key(1, 1), &with_windows), Err(DamagedBytes::Forged));
    }

    #[test]
    fn what_is_plain_is_taken_until_everything_is_sealed() {
        let folder = tempfile::tempdir().unwrap();
        let protection = protection(&folder);
        let key = HashKey::new([3; 32]).index_key(ViewId(1), &[Value::Int64(1)]);
        let plain = record(1, 7).encode(&key);
        assert_eq!(protection.record(&key, &plain), Ok(record(1, 7)));
        let body = RecordBody::plain(record(1, 7).row.encode().into());
        assert_eq!(protection.row(&key, 7, &body), Ok(record(1, 7).row));
        protection.keys().unwrap().set_complete().unwrap();
        assert_eq!(protection.record(&key, &plain), Err(DamagedBytes::Plain));
        assert_eq!(protection.row(&key, 7, &body), Err(DamagedBytes::Plain));
    }

    #[test]
    fn an_erased_entity_is_told_from_a_key_that_is_missing() {
        let folder = tempfile::tempdir().unwrap();
        let protection = protection(&folder);
        let key = HashKey::new([3; 32]).index_key(ViewId(1), &[Value::Int64(1)]);
        let bytes = protection.encode(&key, &record(1, 7)).unwrap();
        let stored = StoredRecord::verify(&key, &bytes).unwrap();
        let unknown = CipherHeader::of_entity(stored.seal.key_id + 1);
        let missing = stored.header.with_body(&key, unknown, false, stored.body);
        assert_eq!(protection.record(&key, &missing), Err(DamagedBytes::KeyMissing));
        protection.keys().unwrap().mark(&[stored.seal.key_id]);
        assert_eq!(protection.record(&key, &bytes), Err(DamagedBytes::Erased));
    }
}
