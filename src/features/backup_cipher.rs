//! Encrypted backups: the stream of a backup as an age file (age-encryption.org/v1), to a recipient or a passphrase.
//!
//! The box needs only the recipient's public key; the identity that opens the backup is kept elsewhere.

use std::fmt;
use std::io::{self, Read, Write};
use std::iter;

use age::secrecy::SecretString;
use age::stream::StreamReader;
pub use age::stream::StreamWriter;
use age::{DecryptError, Decryptor, Encryptor, scrypt, x25519};

/// The largest scrypt work factor, as a power of two: more takes minutes and gigabytes, and would be an attack on
/// memory.
const WORK_FACTOR_MAX: u8 = 22;

/// The recipient of an encrypted backup.
#[derive(Clone)]
pub enum BackupRecipient {
    /// A public key, `age1…`.
    Key(x25519::Recipient),
    Passphrase(SecretString),
}

/// The secret that opens a backup.
pub enum BackupIdentity {
    /// Secret keys, `AGE-SECRET-KEY-1…`.
    Keys(Vec<x25519::Identity>),
    Passphrase(SecretString),
}

/// Reasons why a backup is not encrypted or does not open.
#[derive(Debug, thiserror::Error)]
pub enum BackupCipherError {
    #[error("{text:?} is not an age recipient: expected age1…, as `age-keygen` prints it ({reason})")]
    Recipient { text: String, reason: String },
    #[error("no age identity found: expected a line AGE-SECRET-KEY-1…, as `age-keygen` writes it")]
    Identity,
    #[error("the passphrase is empty")]
    Passphrase,
    #[error("the backup cannot be encrypted: {0}")]
    Write(#[source] io::Error),
    #[error("the encrypted backup does not open: {0}")]
    Open(String),
}

impl fmt::Debug for BackupRecipient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Key(key) => write!(f, "{key}"),
            Self::Passphrase(_) => f.write_str("passphrase"),
        }
    }
}

impl fmt::Debug for BackupIdentity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("BackupIdentity")
    }
}

fn passphrase(text: &str) -> Result<SecretString, BackupCipherError> {
    let text = text.trim_end_matches(['\r', '\n']);
    if text.is_empty() { Err(BackupCipherError::Passphrase) } else { Ok(SecretString::from(text.to_owned())) }
}

impl BackupRecipient {
    /// A public key.
    pub fn key(text: &str) -> Result<Self, BackupCipherError> {
        let parsed = text.parse::<x25519::Recipient>();
        let wrong = |reason: &str| BackupCipherError::Recipient { text: text.to_owned(), reason: reason.to_owned() };
        parsed.map(Self::Key).map_err(wrong)
    }

    /// A passphrase, which is the first line of `content`.
    pub fn passphrase(content: &str) -> Result<Self, BackupCipherError> {
        passphrase(content).map(Self::Passphrase)
    }

    /// Encrypts a stream into `output`. [`StreamWriter::finish`] has to follow.
    pub fn encrypt<W: Write>(&self, output: W) -> Result<StreamWriter<W>, BackupCipherError> {
        let encryptor = match self {
            Self::Key(key) => Encryptor::with_recipients(iter::once(key as &dyn age::Recipient))
                .map_err(|error| BackupCipherError::Write(io::Error::other(error)))?,
            Self::Passphrase(passphrase) => Encryptor::with_user_passphrase(passphrase.clone()),
        };
        encryptor.wrap_output(output).map_err(BackupCipherError::Write)
    }
}

impl BackupIdentity {
    /// The secret keys in the content of a file that `age-keygen` wrote.
    pub fn keys(content: &str) -> Result<Self, BackupCipherError> {
        let lines = content.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
        let keys: Result<Vec<x25519::Identity>, _> = lines.map(str::parse).collect();
        match keys {
            Ok(keys) if !keys.is_empty() => Ok(Self::Keys(keys)),
            _ => Err(BackupCipherError::Identity),
        }
    }

    /// The passphrase, which is the first line of `content`.
    pub fn passphrase(content: &str) -> Result<Self, BackupCipherError> {
        passphrase(content).map(Self::Passphrase)
    }

    /// Decrypts a stream.
    pub fn decrypt<R: Read>(&self, input: R) -> Result<StreamReader<R>, BackupCipherError> {
        let told = |error: DecryptError| BackupCipherError::Open(error.to_string());
        let decryptor = Decryptor::new(input).map_err(told)?;
        match self {
            Self::Keys(_) if decryptor.is_scrypt() => Err(BackupCipherError::Open(
                "it was encrypted with a passphrase: use the passphrase, not an identity".into(),
            )),
            Self::Keys(keys) => decryptor.decrypt(keys.iter().map(|key| key as &dyn age::Identity)).map_err(told),
            Self::Passphrase(_) if !decryptor.is_scrypt() => Err(BackupCipherError::Open(
                "it was encrypted to a recipient: use the identity of that recipient, not a passphrase".into(),
            )),
            Self::Passphrase(passphrase) => {
                let mut identity = scrypt::Identity::new(passphrase.clone());
                identity.set_max_work_factor(WORK_FACTOR_MAX);
                decryptor.decrypt(iter::once(&identity as &dyn age::Identity)).map_err(told)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A new identity, and its recipient.
    fn pair() -> (BackupIdentity, BackupRecipient) {
        let identity = x25519::Identity::generate();
        let recipient = BackupRecipient::Key(identity.to_public());
        (BackupIdentity::Keys(vec![identity]), recipient)
    }

    fn encrypted(to: &BackupRecipient, content: &[u8]) -> Vec<u8> {
        let mut writer = to.encrypt(Vec::new()).unwrap();
        writer.write_all(content).unwrap();
        writer.finish().unwrap()
    }

    fn opened(with: &BackupIdentity, file: &[u8]) -> Result<Vec<u8>, String> {
        let mut content = Vec::new();
        let mut reader = with.decrypt(file).map_err(|error| error.to_string())?;
        reader.read_to_end(&mut content).map_err(|error| error.to_string())?;
        Ok(content)
    }

    #[test]
    fn a_backup_opens_for_its_recipient_and_nobody_else() {
        let (identity, recipient) = pair();
        let (other, _) = pair();
        let content = vec![7; 200_000];
        let file = encrypted(&recipient, &content);
        assert!(
            crate::backup_form::is_encrypted(&mut &file[..]).unwrap()
                && !crate::backup_form::is_encrypted(&mut &content[..]).unwrap()
        );
        assert_eq!(opened(&identity, &file).unwrap(), content);
        assert!(opened(&other, &file).unwrap_err().contains("does not open"));
        for at in [30, file.len() / 2, file.len() - 1] {
            let mut changed = file.clone();
            changed[at] ^= 1;
            assert!(opened(&identity, &changed).is_err(), "byte {at}");
            assert!(opened(&identity, &file[..at]).is_err(), "cut at {at}");
        }
    }

    #[test]
    fn a_passphrase_opens_what_it_encrypted() {
        let file = {
            let mut recipient = scrypt::Recipient::new(SecretString::from("three words here".to_owned()));
            // The usual factor takes a second.
            recipient.set_work_factor(8);
            let encryptor = Encryptor::with_recipients(iter::once(&recipient as &dyn age::Recipient)).unwrap();
            let mut writer = encryptor.wrap_output(Vec::new()).unwrap();
            writer.write_all(b"rows").unwrap();
            writer.finish().unwrap()
        };
        assert_eq!(opened(&BackupIdentity::passphrase("three words here\n").unwrap(), &file).unwrap(), b"rows");
        assert!(opened(&BackupIdentity::passphrase("three words").unwrap(), &file).is_err());
        let keys = pair().0;
        assert!(opened(&keys, &file).unwrap_err().contains("passphrase"));
    }

    #[test]
    fn what_is_no_recipient_or_identity_is_told() {
        assert!(BackupRecipient::key("age1nonsense").unwrap_err().to_string().contains("age-keygen"));
        assert!(BackupIdentity::keys("# a comment alone\n").is_err());
        assert!(BackupRecipient::passphrase("\n").is_err());
        let identity = x25519::Identity::generate();
        let text = format!(
            "# public key: {}\n{}\n",
            identity.to_public(),
            age::secrecy::ExposeSecret::expose_secret(&identity.to_string())
        );
        assert!(BackupIdentity::keys(&text).is_ok());
    }
}
