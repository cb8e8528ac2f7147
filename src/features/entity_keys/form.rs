//! The decrypted content of key files. All integers are little-endian.

use ledge_identity::sealing::OVERHEAD_BYTES;

use super::super::seal::KEY_BYTES;
use super::super::wire::{ByteReader, DamagedBytes, length32};

/// The number of shard files, and the position of the shard's bits in a key's number.
pub const SHARDS: usize = 256;
const SHARD_SHIFT: u32 = 24;

/// The length of a tag.
pub const TAG_BYTES: usize = 16;
/// The identity of an entity that reveals nothing: a keyed hash of its join keys, names and values.
pub type EntityTag = [u8; TAG_BYTES];

const VERSION: u8 = 1;
const ENTRY_BYTES: usize = 4 + TAG_BYTES + KEY_BYTES;
/// The bytes of the bitmap of shards that are on the disk.
const PRESENT_BYTES: usize = SHARDS / 8;

/// The key of an entity.
#[derive(Clone, PartialEq, Eq)]
pub struct EntityKey {
    /// The number: that of the shard, and a count from 1 on within it. No number is reused.
    pub id: u32,
    pub tag: EntityTag,
    pub key: [u8; KEY_BYTES],
}

impl std::fmt::Debug for EntityKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "KeyEntry({:08x})", self.id)
    }
}

/// The shard of a key's number.
pub fn shard_of(id: u32) -> usize {
    (id >> SHARD_SHIFT) as usize
}

/// The number of the `count`th key of a shard, from 1 on; `None` when all are used.
pub fn number(shard: usize, count: u32) -> Option<u32> {
    let shard = u32::try_from(shard).ok()?;
    (count > 0 && count < 1 << SHARD_SHIFT && shard < 256).then_some(shard << SHARD_SHIFT | count)
}

/// The shard of a tag.
pub fn shard_of_tag(tag: &EntityTag) -> usize {
    usize::from(tag[0])
}

fn put(bytes: &mut Vec<u8>, entry: &EntityKey) {
    bytes.extend_from_slice(&entry.id.to_le_bytes());
    bytes.extend_from_slice(&entry.tag);
    bytes.extend_from_slice(&entry.key);
}

fn read(reader: &mut ByteReader<'_>) -> Result<EntityKey, DamagedBytes> {
    let entry = EntityKey { id: u32::from_le_bytes(reader.array()?), tag: reader.array()?, key: reader.array()? };
    let fits = entry.id << (32 - SHARD_SHIFT) != 0 && shard_of(entry.id) == shard_of_tag(&entry.tag);
    if fits { Ok(entry) } else { Err(DamagedBytes::Malformed) }
}

/// Keys that were added together.
pub fn encode_entries(entries: &[EntityKey]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(entries.len() * ENTRY_BYTES);
    for entry in entries {
        put(&mut bytes, entry);
    }
    bytes
}

/// Reads the output of [`encode_entries`].
pub fn decode_entries(bytes: &[u8]) -> Result<Vec<EntityKey>, DamagedBytes> {
    let mut reader = ByteReader::new(bytes);
    let mut entries = Vec::with_capacity(bytes.len() / ENTRY_BYTES);
    while !reader.is_empty() {
        entries.push(read(&mut reader)?);
    }
    Ok(entries)
}

/// A shard: the count of the next key, and the keys by their numbers.
pub fn encode_shard(next: u32, entries: &[EntityKey]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(4 + entries.len() * ENTRY_BYTES);
    bytes.extend_from_slice(&next.to_le_bytes());
    for entry in entries {
        put(&mut bytes, entry);
    }
    bytes
}

/// Reads the output of [`encode_shard`] for a shard.
pub fn decode_shard(shard: usize, bytes: &[u8]) -> Result<(u32, Vec<EntityKey>), DamagedBytes> {
    let mut reader = ByteReader::new(bytes);
    let next = u32::from_le_bytes(reader.array()?);
    let entries = decode_entries(reader.rest())?;
    let ascending = entries.windows(2).all(|pair| matches!(pair, [a, b] if a.id < b.id));
    let own = entries.iter().all(|entry| shard_of(entry.id) == shard);
    let below = entries.last().is_none_or(|last| last.id << (32 - SHARD_SHIFT) >> (32 - SHARD_SHIFT) < next);
    let possible = next > 0 && next <= 1 << SHARD_SHIFT;
    if ascending && own && below && possible { Ok((next, entries)) } else { Err(DamagedBytes::Malformed) }
}

/// The content of the head file: the facts that all key files of a store share.
#[derive(Clone, PartialEq, Eq)]
pub struct KeysHead {
    /// Ties the files of one store together.
    pub store: [u8; 16],
    /// The secret behind the tags.
    pub secret: [u8; 32],
    /// True when everything in the store is encrypted.
    pub complete: bool,
    /// The shards that are on the disk.
    pub present: [bool; SHARDS],
}

impl std::fmt::Debug for KeysHead {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Head")
    }
}

impl KeysHead {
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = vec![VERSION, u8::from(self.complete)];
        bytes.extend_from_slice(&self.store);
        bytes.extend_from_slice(&self.secret);
        let byte = |bits: &[bool]| bits.iter().enumerate().fold(0, |byte, (at, bit)| byte | u8::from(*bit) << at);
        bytes.extend(self.present.chunks(8).map(byte));
        bytes
    }

    /// Reads the output of [`Self::encode`].
    pub fn decode(bytes: &[u8]) -> Result<Self, DamagedBytes> {
        let mut reader = ByteReader::new(bytes);
        let [version, complete] = reader.array()?;
        if version != VERSION {
            return Err(DamagedBytes::Unknown);
        }
        let (store, secret) = (reader.array()?, reader.array()?);
        let bits: [u8; PRESENT_BYTES] = reader.array()?;
        let mut present = [false; SHARDS];
        for (bit, at) in present.iter_mut().zip(0..) {
            *bit = bits.get(at / 8).is_some_and(|byte| byte >> (at % 8) & 1 == 1);
        }
        let whole = reader.is_empty() && complete <= 1;
        if whole { Ok(Self { store, secret, complete: complete == 1, present }) } else { Err(DamagedBytes::Malformed) }
    }
}

/// One encrypted piece of a file of added keys: its length, then its bytes.
pub fn encode_frame(sealed: &[u8]) -> Vec<u8> {
    [&length32(sealed.len())[..], sealed].concat()
}

/// The complete frames of a file of added keys, in order. The flag is true when nothing else is behind them. No
/// encrypted piece is shorter than [`OVERHEAD_BYTES`]: zeros, as a power cut may leave them, are no frames.
pub fn decode_frames(bytes: &[u8]) -> (Vec<&[u8]>, bool) {
    let mut reader = ByteReader::new(bytes);
    let mut frames = Vec::new();
    while !reader.is_empty() {
        let frame = reader.array().map(u32::from_le_bytes).and_then(|length| reader.take(length as usize));
        match frame {
            Ok(frame) if frame.len() >= OVERHEAD_BYTES => frames.push(frame),
            _ => return (frames, false),
        }
    }
    (frames, true)
}

/// Feeds arbitrary bytes to the readers of key files, for a fuzzer: content that was read is written the same.
///
/// # Panics
/// When that does not hold, which is a bug.
#[cfg(any(test, feature = "fuzzing"))]
pub fn fuzz(data: &[u8]) -> usize {
    let mut read = 0;
    if let Some((shard, content)) = data.split_first()
        && let Ok((next, entries)) = decode_shard(usize::from(*shard), content)
    {
        assert_eq!(encode_shard(next, &entries), content);
        read += entries.len();
    }
    if let Ok(entries) = decode_entries(data) {
        assert_eq!(encode_entries(&entries), data);
    }
    if let Ok(head) = KeysHead::decode(data) {
        assert_eq!(head.encode(), data);
        read += 1;
    }
    let (frames, whole) = decode_frames(data);
    let again: Vec<u8> = frames.iter().flat_map(|frame| encode_frame(frame)).collect();
    assert!(data.starts_with(&again));
    assert_eq!(again.len() == data.len(), whole);
    read
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn entry(shard: u8, count: u32) -> EntityKey {
        let mut tag = [7; TAG_BYTES];
        tag[0] = shard;
        EntityKey { id: number(usize::from(shard), count).unwrap(), tag, key: [9; KEY_BYTES] }
    }

    proptest! {
        #[test]
        fn a_shard_comes_back_as_it_was(shard: u8, counts in prop::collection::btree_set(1..1000_u32, 0..20)) {
            let entries: Vec<_> = counts.iter().map(|count| entry(shard, *count)).collect();
            let next = counts.last().map_or(1, |last| last + 1);
            let bytes = encode_shard(next, &entries);
            prop_assert_eq!(decode_shard(usize::from(shard), &bytes), Ok((next, entries.clone())));
            prop_assert!(decode_shard(usize::from(shard) ^ 1, &bytes).is_err() || entries.is_empty());
            prop_assert!(decode_shard(usize::from(shard), &bytes[..bytes.len() - 1]).is_err());
        }

        #[test]
        fn a_head_comes_back_as_it_was(store: [u8; 16], secret: [u8; 32], complete: bool, at in 0..SHARDS) {
            let mut present = [false; SHARDS];
            present[at] = true;
            let head = KeysHead { store, secret, complete, present };
            prop_assert!(KeysHead::decode(&head.encode()) == Ok(head));
        }

        #[test]
        fn any_bytes_are_keys_or_damage(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            fuzz(&bytes);
        }
    }

    #[test]
    fn a_key_number_that_was_never_given_is_damage() {
        let bytes = encode_shard(5, &[entry(3, 5)]);
        assert_eq!(decode_shard(3, &bytes), Err(DamagedBytes::Malformed));
        assert!(decode_shard(3, &encode_shard(6, &[entry(3, 5)])).is_ok());
        assert_eq!((number(3, 0), number(3, 1 << 24)), (None, None));
    }

    #[test]
    fn a_torn_frame_is_left_out() {
        let (one, two) = ([1; OVERHEAD_BYTES], [2; OVERHEAD_BYTES + 1]);
        let first = encode_frame(&one);
        let mut whole = [&first[..], &encode_frame(&two)].concat();
        assert_eq!(decode_frames(&whole), (vec![&one[..], &two], true));
        for cut in first.len()..whole.len() {
            assert_eq!(decode_frames(&whole[..cut]), (vec![&one[..]], cut == first.len()));
        }
        whole.extend([0; 64]);
        assert_eq!(decode_frames(&whole), (vec![&one[..], &two], false));
    }
}
