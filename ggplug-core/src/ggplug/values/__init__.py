"""The values of tensors: conversion to and from arrays, buffers, tensors that are not set yet, revisions."""
