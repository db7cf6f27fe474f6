SELECT identity, since, ahead_us, latest FROM fence
