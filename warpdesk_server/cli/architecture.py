"""A GPU architecture as an argument of a command, such as sm_90."""

import argparse


def architecture(text: str) -> str:
    from warpdesk_server.precompile import named

    try:
        return named(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
