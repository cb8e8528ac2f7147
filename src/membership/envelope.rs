//! The envelope of signed files: DSSE 1.0 (secure-systems-lab/dsse), in JSON.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Serialize};

/// The largest envelope that is read, in bytes: a join file has some 15 KiB, most of it root metadata.
pub const ENVELOPE_BYTES_MAX: usize = 256 << 10;

/// A signed payload.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Envelope {
    pub payload_type: String,
    /// Base64.
    payload: String,
    pub signatures: Vec<EnvelopeSignature>,
}

/// One signature of an envelope.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EnvelopeSignature {
    pub keyid: String,
    /// Base64.
    sig: String,
    /// The certificate of the signer, followed by its issuers, in PEM.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub certificate: Option<String>,
}

impl EnvelopeSignature {
    /// The signature itself; `None` where it is not base64.
    pub fn bytes(&self) -> Option<Vec<u8>> {
        STANDARD.decode(&self.sig).ok()
    }
}

impl Envelope {
    /// A payload with one signature, which `sign` makes.
    pub fn sign<E>(
        payload_type: &str,
        payload: &[u8],
        keyid: &str,
        sign: impl FnOnce(&[u8]) -> Result<Vec<u8>, E>,
    ) -> Result<Self, E> {
        let sig = STANDARD.encode(sign(&signed_bytes(payload_type, payload))?);
        let signature = EnvelopeSignature { keyid: keyid.to_owned(), sig, certificate: None };
        Ok(Self {
            payload_type: payload_type.to_owned(),
            payload: STANDARD.encode(payload),
            signatures: vec![signature],
        })
    }

    /// Reads an envelope; `None` where it is none. It verifies nothing.
    pub fn read(bytes: &[u8]) -> Option<Self> {
        if bytes.len() > ENVELOPE_BYTES_MAX { None } else { serde_json::from_slice(bytes).ok() }
    }

    /// The payload, which only a verified signature makes trustworthy; `None` where it is not base64.
    pub fn payload(&self) -> Option<Vec<u8>> {
        STANDARD.decode(&self.payload).ok()
    }
}

/// The bytes that a signature covers: the pre-authentication encoding of DSSE.
pub fn signed_bytes(payload_type: &str, payload: &[u8]) -> Vec<u8> {
    let head = format!("DSSEv1 {} {payload_type} {} ", payload_type.len(), payload.len());
    [head.as_bytes(), payload].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_signed_bytes_are_those_of_the_example_of_dsse() {
        // https://github.com/secure-systems-lab/dsse/blob/master/implementation/signing_spec.py
        let signed = signed_bytes("http://example.com/HelloWorld", b"hello world");
        assert_eq!(signed, b"DSSEv1 29 http://example.com/HelloWorld 11 hello world");
    }

    #[test]
    fn an_envelope_reads_as_it_was_written() {
        let sign = |bytes: &[u8]| Ok::<_, ()>(bytes.iter().rev().copied().collect());
        let made = Envelope::sign("t", b"payload", "key", sign).unwrap();
        let read = Envelope::read(&serde_json::to_vec(&made).unwrap()).unwrap();
        assert_eq!(read, made);
        assert_eq!(read.payload().unwrap(), b"payload");
        assert_eq!(read.signatures[0].bytes().unwrap(), b"daolyap 7 t 1 1vESSD");
        assert_eq!(Envelope::read(b"{}"), None);
        assert_eq!(Envelope::read(&vec![b' '; ENVELOPE_BYTES_MAX + 1]), None);
    }
}
