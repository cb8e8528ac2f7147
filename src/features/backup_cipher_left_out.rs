//! Replaces `backup_cipher.rs` in a build without the feature `age`: backups are plain, and a request for an encrypted
//! one fails with an error that says why.

use std::io::{self, Read, Write};

/// A recipient. It has no value in this build.
#[derive(Debug, Clone)]
pub enum BackupRecipient {}

/// An identity. It has no value in this build.
#[derive(Debug)]
pub enum BackupIdentity {}

/// An encrypted stream. It has no value in this build.
#[derive(Debug)]
pub struct StreamWriter<W>(BackupRecipient, W);

/// This build has no cipher for backups.
#[derive(Debug, thiserror::Error)]
#[error("this build of ledge does not encrypt or open backups: build it with the feature `age`, or install a package")]
pub struct BackupCipherError;

impl BackupRecipient {
    /// Always an error.
    pub fn key(_: &str) -> Result<Self, BackupCipherError> {
        Err(BackupCipherError)
    }

    /// Always an error.
    pub fn passphrase(_: &str) -> Result<Self, BackupCipherError> {
        Err(BackupCipherError)
    }

    /// Never called.
    pub fn encrypt<W: Write>(&self, _: W) -> Result<StreamWriter<W>, BackupCipherError> {
        match *self {}
    }
}

impl BackupIdentity {
    /// Always an error.
    pub fn keys(_: &str) -> Result<Self, BackupCipherError> {
        Err(BackupCipherError)
    }

    /// Always an error.
    pub fn passphrase(_: &str) -> Result<Self, BackupCipherError> {
        Err(BackupCipherError)
    }

    /// Never called.
    pub fn decrypt<R: Read>(&self, input: R) -> Result<R, BackupCipherError> {
        drop(input);
        match *self {}
    }
}

impl<W> StreamWriter<W> {
    /// Never called.
    pub fn finish(self) -> io::Result<W> {
        match self.0 {}
    }
}

impl<W> Write for StreamWriter<W> {
    fn write(&mut self, _: &[u8]) -> io::Result<usize> {
        match self.0 {}
    }

    fn flush(&mut self) -> io::Result<()> {
        match self.0 {}
    }
}
