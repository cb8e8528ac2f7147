//! Pictures from one camera, over one connection that is kept.

use std::time::Duration;

use bytes::Bytes;
use ledge_base::secret::{SecretError, SecretFile};
use ledge_egress::{Egress, HttpError, SnapshotClient};
use ledge_service::off_thread::blocking;
use tokio::time::timeout;
use zeroize::Zeroizing;

use crate::address::SnapshotUrl;
use crate::config::CameraConfig;
use crate::login::{CameraCredentials, CameraLoginError, DigestLogin};
use crate::picture_memory::PictureMemory;

/// The largest picture, in bytes.
const PICTURE_BYTES_MAX: usize = 16 << 20;

/// Limit for one step of a request, and for all of it.
const REPLY_TIMEOUT: Duration = Duration::from_secs(5);
const FETCH_TIMEOUT: Duration = Duration::from_secs(10);

/// Gets the pictures of one camera.
#[derive(Debug)]
pub struct PictureFetcher {
    client: SnapshotClient,
    memory: PictureMemory,
    url: SnapshotUrl,
    user: String,
    password_file: Option<SecretFile>,
    /// The answer to the camera's last challenge.
    login: Option<DigestLogin>,
    /// Set once the camera asked for a hash of the password: it will not get the password itself.
    hashes: bool,
}

/// The reason why there is no picture. The message follows the name of the camera.
#[derive(Debug, thiserror::Error)]
pub enum PictureFetchError {
    #[error(transparent)]
    Http(#[from] HttpError),
    #[error(transparent)]
    Login(#[from] CameraLoginError),
    #[error(transparent)]
    Secret(#[from] SecretError),
    #[error("refuses the login: check `user` and the password in `password_file`")]
    LoginRefused,
    #[error("answers with status {0}: check the path of `url`")]
    Status(u16),
    #[error("took longer than {} s for a picture", FETCH_TIMEOUT.as_secs())]
    Late,
}

impl PictureFetcher {
    /// `None` for a camera without an address. Nothing is connected yet.
    pub fn new(config: &CameraConfig, egress: &Egress, memory: &PictureMemory) -> Option<Self> {
        let (settings, url) = (config.connection()?, config.url.as_ref()?);
        Some(Self {
            client: SnapshotClient::new(egress.clone(), settings, REPLY_TIMEOUT),
            memory: memory.clone(),
            url: url.clone(),
            user: config.user.clone(),
            password_file: config.password_file.clone(),
            login: None,
            hashes: false,
        })
    }

    /// Gets one picture, or any other content that the camera sends with the status 200.
    pub async fn picture(&mut self) -> Result<Bytes, PictureFetchError> {
        timeout(FETCH_TIMEOUT, self.get()).await.unwrap_or(Err(PictureFetchError::Late))
    }

    /// True if the camera asked for the password itself at the last login.
    pub fn sends_password(&self) -> bool {
        self.login.as_ref().is_some_and(DigestLogin::is_basic)
    }

    async fn get(&mut self) -> Result<Bytes, PictureFetchError> {
        let authorization = self.authorization().await?;
        let mut answer = self.ask(authorization.as_ref()).await?;
        if answer.status == 401 {
            // The first request, or the camera's challenge has expired.
            let login = DigestLogin::read(&answer.challenges).inspect_err(|_| self.login = None)?;
            if self.hashes && login.is_basic() {
                return Err(CameraLoginError::Downgraded.into());
            }
            self.hashes |= !login.is_basic();
            self.login = Some(login);
            // Read, so that the connection can be used again.
            answer.body().await?;
            let Some(authorization) = self.authorization().await? else {
                self.login = None;
                return Err(CameraLoginError::NoCredentials.into());
            };
            answer = self.ask(Some(&authorization)).await?;
        }

        match answer.status {
            200 => {
                let room = self.memory.room(answer.bytes_max).await;
                // Its bytes say whether it is a picture, and of which format, as in calls. Cameras often send another
                // type.
                Ok(room.keep(answer.body().await?))
            }
            401 => {
                self.login = None;
                Err(PictureFetchError::LoginRefused)
            }
            status => Err(PictureFetchError::Status(status)),
        }
    }

    async fn ask(
        &self,
        authorization: Option<&Zeroizing<String>>,
    ) -> Result<ledge_egress::SnapshotResponse, HttpError> {
        let authorization = authorization.map(|value| value.as_str());
        self.client.get(&self.url.path, authorization, PICTURE_BYTES_MAX).await
    }

    /// The value of `Authorization`; `None` before the camera has asked for a login, and without a password.
    async fn authorization(&mut self) -> Result<Option<Zeroizing<String>>, PictureFetchError> {
        let (Some(login), Some(file)) = (&mut self.login, &self.password_file) else { return Ok(None) };
        // Read each time: a new password needs no restart, and none is kept.
        let file = file.clone();
        let password = Zeroizing::new(blocking(move || file.read_text()).await?);
        let answer = login.answer(&CameraCredentials { user: self.user.clone(), password }, &self.url.path);
        Ok(answer)
    }
}
