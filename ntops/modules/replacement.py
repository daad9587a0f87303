"""Replace a model's modules by others, and restore them."""

_ORIGINAL = "_ntops_replaced"


def replace(model, replacements):
    """Replace modules of some types in ``model`` itself.

    Each original is kept, unchanged, until :func:`restore` puts it back. A replacement that shares its parameters needs
    no further memory, and follows loading and moving the model. A module that the model has in two places is replaced
    once. Types are looked up exactly: subclasses may compute something else.

    :param model: A :class:`torch.nn.Module`.
    :param replacements: A function for each type of module: it takes a module of the type and returns the one that
        replaces it, such as ``{MyMLP: lambda mlp: FusedGatedMLP.from_linear(mlp.gate, mlp.up)}``.
    :return: The model, or its replacement if its own type is among them.
    """

    def swapped(module):
        make = replacements.get(type(module))

        if make is None:
            return module

        replacement = make(module)
        # Bypass Module.__setattr__: the original is not a submodule of its replacement.
        replacement.__dict__[_ORIGINAL] = module

        return replacement

    return _swap(model, swapped)


def restore(model):
    """Put back all modules that :func:`replace` has replaced in ``model``, and return the model as it was."""

    def swapped(module):
        original = module.__dict__.get(_ORIGINAL)

        if original is None:
            return module

        if original.training != module.training:
            original.train(module.training)

        # A module inside may have been replaced before this one was.
        return restore(original)

    return _swap(model, swapped)


def _swap(model, swapped):
    found = {}

    def visit(module):
        if module not in found:
            found[module] = swapped(module)

            if found[module] is module:
                # named_children() omits a module's second occurrence.
                for name, child in module._modules.items():
                    if child is not None and visit(child) is not child:
                        setattr(module, name, found[child])

        return found[module]

    return visit(model)
