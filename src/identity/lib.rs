//! Identity and access: the name of this box, its callers and their permissions, and the encryption of its secrets.
//!
//! Files, in reading order:
//! * `device.rs` - the name of this box, of its group and of its fleet
//! * `access.rs` - roles, and the permissions of each
//! * `access_config.rs` - `[access]`: permissions of callers without an API key
//! * `listed_names.rs` - lists of names of models and feature views, in which `["*"]` stands for all
//! * `api_key.rs` - an API key as its holder presents it: read and made
//! * `sign_in.rs` - the texts of a sign-in at the console: its code, and the two halves of a session
//! * `keys.rs` - the store of API keys, `keys.json`, with the hash of each key
//! * `keys/` - parts of that store:
//!   * `record.rs`, `error.rs` - one key, and reasons why keys cannot be read or changed
//!   * `document.rs` - a key as lists show it
//!   * `expiry.rs` - the end of a new key, as a person writes it
//!   * `file.rs` - its form: JSON with a version and a closed set of fields
//!   * `recorded.rs` - the changes of the store that the audit log has already
//! * `certificate.rs` - the facts known of a client certificate; `listener/tls/certificate.rs` reads them
//! * `authentication.rs` - a `Peer` and its credential to a `Caller`: principal, access, proof
//! * `authentication/` - limits and changes:
//!   * `administration.rs` - keys listed, created and revoked by a caller
//!   * `sessions.rs` - codes that wait and sessions that run; `sign_in.rs` - a person signs in and out
//!   * `network.rs` - the network that they are counted for
//!   * `failed_attempts.rs` - the limit of failed attempts, for each address or user
//!   * `request_limiter.rs` - requests a second and requests at a time, for the holder of a key or a certificate
//!   * `watch.rs` - checks the store once a second and records its changes
//! * `sealing.rs` - `Sealer`: encrypts bytes with keys derived from the master key, one for each purpose
//! * `sealing/` - encrypted files:
//!   * `stream.rs` - files encrypted in chunks, so that none is held as a whole
//!   * `folder.rs` - encrypted files decrypted into memory while a runtime loads them
//!   * `fuzz.rs` - properties that hold for any encrypted bytes and any master key
//!
//! Invariants:
//! * The name of the box is never the host name: boxes installed from one image share it.
//! * No secret of a caller is kept, only its hash. A master key is kept only as long as it takes to derive keys from
//!   it.
//! * Authentication reads no file on the way to an answer. Failed attempts of others never slow down a caller with a
//!   good key.
//! * A key or a session that is not good never falls back to the permissions of a caller without one.
//! * Of a session the daemon keeps the hashes of its two halves, in memory.
//! * With a `keys.json` that is damaged or writable for others every key is refused, and it is never replaced. The
//!   command line changes it, and the daemon for a caller who may administer the box.
//! * A key recorded as revoked stays revoked, even if an older `keys.json` takes the place of the newer one.
//! * Encrypted bytes name the master key that they need, so that old ones open while all are encrypted again with a
//!   new key.
//!
//! # Where it is decided
//!
//! * The caller without a key: `Authenticator::without_key` in `authentication.rs`, from `[access]`
//! * A key that a caller creates or revokes, whose change it is, and when it counts:
//!   `authentication/administration.rs`; the record of it: `authentication/watch.rs`. The request comes from
//!   `console/keys.rs`
//! * The order in which stores are encrypted again under a new master key, and what follows an interruption:
//!   `daemon/rekey.rs`; each store implements `Rekey`
#![forbid(unsafe_code)]

pub mod access;
pub mod access_config;
pub mod api_key;
pub mod authentication;
pub mod certificate;
pub mod device;
pub mod keys;
mod listed_names;
pub mod sealing;
pub mod sign_in;
