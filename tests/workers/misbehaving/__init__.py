"""Operations that behave as badly as native code can, each with both backends."""
